"""Models as the step loop sees them: a conversation goes in, one complete answer or a failure comes out."""

from config.models import check_model
from workers.models.answer import Answer, Model
from workers.models.catalog import Models
from workers.models.conversation import Conversation
from workers.models.failure import ModelFailure, retry_delay_seconds

__all__ = ["Answer", "Conversation", "Model", "ModelFailure", "Models", "check_model", "retry_delay_seconds"]
