"""What a coordinator's log tells about turns, after the commit that did it."""

import dataclasses

from structlog.testing import capture_logs

from team.dispatch.lines import tell
from team.log.transaction import Claimed, Effects, Ended, Lost
from tests.support.runs import RUN

IDS = {"team": "team-1", "member": "bob", "session": "session-1", "turn": "turn-1"}


def test_claims_losses_and_ends_name_the_turn_and_its_worker() -> None:
    queued = dataclasses.replace(RUN, worker=None)
    with capture_logs() as told:
        tell(
            Effects(
                claimed=[Claimed(queued, "two", 2, 0.25)],
                lost=[Lost(RUN, 3)],
                ended=[Ended(RUN.session_id, RUN.turn_id, RUN, "error", "poison")],
            )
        )
    assert told == [
        {"event": "turn given", "log_level": "info", **IDS, "worker": "two", "epoch": 2, "queued_seconds": 0.25},
        {"event": "worker lost", "log_level": "warning", **IDS, "worker": "one", "epoch": 1, "losses": 3},
        {"event": "turn ended", "log_level": "info", **IDS, "worker": "one", "reason": "error", "code": "poison"},
    ]


def test_an_end_without_a_row_names_what_is_known_and_nothing_happened_tells_nothing() -> None:
    with capture_logs() as told:
        tell(Effects(ended=[Ended(RUN.session_id, RUN.turn_id, None, "completed", None)]))
        tell(Effects(events=3))
    assert told == [
        {"event": "turn ended", "log_level": "info", "session": "session-1", "turn": "turn-1", "reason": "completed"}
    ]
