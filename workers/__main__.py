"""``python -m workers``: one worker process, configured by ``TEAM_*`` variables.

Exit codes: 0 after a hand-over, 1 when a dependency is away or Celery gave up, 2 when the configuration is wrong,
70 when the worker found itself deaf or wedged, or its hand-over did not end in time. A supervisor starts it again
after every code but 0 and 2.
"""

import os
import re
import secrets
import signal
import socket
import sys
from types import FrameType
from typing import Final

from pydantic import ValidationError

from config import faults, logs
from config.broker import redis_url
from config.secrets import take_provider_keys
from config.settings import Settings, settings
from team.model.errors import (
    ConfigurationInvalid,
    CoordinatorUnreachable,
    StoreUnavailable,
    TeamError,
    WorkspaceUnavailable,
)
from team.model.events import first_fault

OK: Final = 0
AWAY: Final = 1
MISCONFIGURED: Final = 2

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def main() -> int:
    """Run a worker until a signal or a fault ends it."""
    # Until Celery has its own handler: as the first process of a container it would not hear SIGTERM at all.
    signal.signal(signal.SIGTERM, _leave)
    try:
        return _run(settings())
    except ValidationError as error:
        return _refuse(f"the settings are not valid: TEAM_{first_fault(error).upper()}", MISCONFIGURED)
    except (CoordinatorUnreachable, StoreUnavailable, WorkspaceUnavailable) as error:
        return _refuse(error.message, AWAY)
    except TeamError as error:
        return _refuse(error.message, MISCONFIGURED)


def worker_name(chosen: str | None) -> str:
    """The worker's name; raises ConfigurationInvalid when ``chosen`` could not be part of a queue's name."""
    name = chosen or f"{socket.gethostname()}-{os.getpid()}"
    if not _NAME.fullmatch(name):
        raise ConfigurationInvalid(f"TEAM_WORKER_NAME {name!r} is not usable: letters, digits and . _ - only")
    return name


def _run(chosen: Settings) -> int:
    name = worker_name(chosen.worker_name)
    logs.configure(chosen, worker=name)
    faults.arm(chosen.fault_points, chosen.fault_dir)
    redis_url(chosen.broker_url)
    if not chosen.queue_names:
        raise ConfigurationInvalid("TEAM_QUEUES names no queue")
    # Imported late: what can be refused is refused before a second of imports.
    from workers.app import serve  # noqa: PLC0415
    from workers.checkout import make_non_dumpable  # noqa: PLC0415
    from workers.runtime import DEAF_EXIT, Runtime  # noqa: PLC0415

    make_non_dumpable()
    keys = take_provider_keys(chosen)
    logs.configure(chosen, worker=name, secrets=[value for place, value in keys.items() if place.endswith("_KEY")])
    runtime = Runtime(chosen, keys, name=name)
    runtime.start()
    code = serve(chosen, runtime, nodename=f"{name}@{socket.gethostname()}", instance=f"{name}.{secrets.token_hex(4)}")
    runtime.close()
    if runtime.fatal is not None:
        return _refuse(runtime.fatal, MISCONFIGURED)
    return DEAF_EXIT if runtime.wedged else code


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(OK)


def _refuse(sentence: str, code: int) -> int:
    sys.stderr.write(f"worker: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
