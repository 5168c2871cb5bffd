"""``python -m config.flower``: Flower on this deployment's broker, behind a password."""

import os
import signal
import sys
from types import FrameType
from typing import Any, Final

from config.broker import redis_url
from config.celery import celery_app
from config.exposure import require_private, require_token
from config.settings import Settings, settings
from team.model.errors import ConfigurationInvalid

MISCONFIGURED: Final = 2
SHORTEST_PASSWORD: Final = 12


def flower_options(chosen: Settings) -> dict[str, str]:
    """Flower's own variables. Raises ConfigurationInvalid when it would be open or guessable."""
    redis_url(chosen.broker_url)
    password = require_token(chosen.flower_password, "TEAM_FLOWER_PASSWORD").get_secret_value()
    require_private(chosen.published_on or chosen.host, (chosen.flower_password,))
    if len(password) < SHORTEST_PASSWORD:
        raise ConfigurationInvalid(f"TEAM_FLOWER_PASSWORD is too short: take {SHORTEST_PASSWORD} characters or more.")
    if ":" in chosen.flower_user or not chosen.flower_user:
        raise ConfigurationInvalid("TEAM_FLOWER_USER must be a name without a colon.")
    return {
        # In the environment of this process, not on its command line, which every user of the machine can read.
        "FLOWER_BASIC_AUTH": f"{chosen.flower_user}:{password}",
        "FLOWER_ADDRESS": chosen.host,
        "FLOWER_PORT": str(chosen.port),
        # Flower keeps what it has seen in memory; these bound it.
        "FLOWER_MAX_TASKS": "10000",
        "FLOWER_MAX_WORKERS": "500",
        "FLOWER_PURGE_OFFLINE_WORKERS": "3600",
        "FLOWER_TASK_RUNTIME_METRIC_BUCKETS": "0.1,0.5,1,5,15,60,300,900,3600",
    }


def main() -> int:
    """Serve until SIGTERM. Returns 2, with one sentence on stderr, when the configuration cannot work."""
    try:
        chosen = settings()
        options = flower_options(chosen)
    except (ConfigurationInvalid, ValueError) as error:
        sys.stderr.write(f"flower: {error}\n")
        return MISCONFIGURED
    for name in [name for name in os.environ if name.startswith(("FLOWER_", "TEAM_"))]:
        # Such as FLOWER_UNAUTHENTICATED_API, which would open it.
        del os.environ[name]
    os.environ.update(options)
    app: Any = celery_app(chosen.broker_url or "", chosen.key_prefix)
    app.set_default()
    signal.signal(signal.SIGTERM, _stop)
    app.start(["flower"])
    return 0


def _stop(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
