"""Log lines about turns: what a committed transaction did with them, with the ids that a worker's lines bear."""

import structlog

from team.log.runs import ids_of
from team.log.transaction import Effects

_log = structlog.stdlib.get_logger(__name__)


def tell(effects: Effects) -> None:
    """Log the claims, the losses and the ends of a committed transaction."""
    for claimed in effects.claimed:
        ids = {**ids_of(claimed.run), "worker": claimed.worker}
        _log.info("turn given", **ids, epoch=claimed.epoch, queued_seconds=round(claimed.queued_seconds, 3))
    for lost in effects.lost:
        _log.warning("worker lost", **ids_of(lost.run), epoch=lost.run.epoch, losses=lost.losses)
    for ended in effects.ended:
        found = {"session": ended.session_id, "turn": ended.turn_id}
        ids = found if ended.run is None else ids_of(ended.run)
        _log.info("turn ended", **ids, reason=ended.reason, **({} if ended.code is None else {"code": ended.code}))
