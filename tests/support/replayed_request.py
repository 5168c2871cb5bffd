"""Make one request from dumped entries (standard input) in a process of its own: ``MODEL OPENAI_URL ANTHROPIC_URL``."""

import asyncio
import sys

from config.settings import Settings
from tests.support.sessions import load
from workers.models import Models


async def main(model: str, openai_url: str, anthropic_url: str) -> None:
    """Send the next request of the conversation."""
    settings = Settings(model_base_url=openai_url)
    models = Models(settings, {"ANTHROPIC_API_KEY": "key", "ANTHROPIC_BASE_URL": anthropic_url})
    try:
        await models.get(model).answer(load(sys.stdin.buffer.read()), member="lead", on_text=lambda _: None)
    finally:
        await models.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
