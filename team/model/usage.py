"""What a Team has used, as operators see it."""

from team.model.ids import SessionId, TeamId
from team.model.values import Value


class SessionUsageView(Value):
    """One Session in all its turns, without what it inherited.

    ``input_tokens`` include the ``cached_tokens``; ``tool_ms`` counts tools that ran on a worker. ``name`` is a
    member's target, or the label of a subagent.
    """

    session_id: SessionId
    name: str
    is_member: bool = False
    model: str | None = None
    turns: int = 0
    steps: int = 0
    calls: int = 0
    tool_ms: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    compactions: int = 0
    fault: str | None = None


class BudgetView(Value):
    """What the Team has used since its newest human prompt, beside its limits; an absent limit is none."""

    tokens: int
    turns: int
    seconds: float
    max_tokens: int | None = None
    max_turns: int | None = None
    max_seconds: float | None = None


class UsageView(Value):
    """Every Session of a Team's tree, the Lead first."""

    team_id: TeamId
    sessions: tuple[SessionUsageView, ...]
    budget: BudgetView
