"""What viewers follow: one feed per Team and one for the list of Teams, read once however many look at it."""

import asyncio
import contextlib
import hashlib
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import structlog

from team.model.errors import TeamError
from team.model.ids import TeamId
from team.model.wire import SessionStatus, TeamState, TeamSummary, TeamWire

_log = structlog.get_logger(__name__)

PERIOD_SECONDS: Final = 0.1
"""The shortest time between two reads of one feed: changes in between are seen together."""
LIST_PERIOD_SECONDS: Final = 1.0
REREAD_SECONDS: Final = 4.0
"""How late a change is seen whose hint was lost."""
MAX_DELTA_CHARACTERS: Final = 65_536
COLLECTIONS: Final = ("roster", "tasks", "failure")


@dataclass(frozen=True)
class Delta:
    """Streamed text of one model request. ``offset`` counts the characters before it, so that a gap can be seen."""

    session_id: str
    turn_id: str
    epoch: int
    step: int
    attempt: int
    offset: int
    text: str

    @property
    def order(self) -> tuple[int, int, int]:
        return self.step, self.epoch, self.attempt


def read_delta(session_id: str, payload: str) -> Delta | None:
    """A delta from its message on the channel; None when it is none."""
    try:
        found = cast("dict[str, Any]", json.loads(payload))
        return Delta(
            session_id,
            str(found["turnId"]),
            int(found["epoch"]),
            int(found["step"]),
            int(found["attempt"]),
            int(found.get("offset", 0)),
            str(found["text"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(eq=False)
class Viewer:
    """One connected stream. What it did not send yet is bounded: states by their newest version, text by characters.

    Text over the bound is dropped, whole: the reader sees the gap by the next offset, and the log holds the answer.
    """

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _deltas: deque[Delta] = field(default_factory=deque[Delta])
    _characters: int = 0
    _newest: dict[str, tuple[str, tuple[int, int, int]]] = field(
        default_factory=dict[str, tuple[str, tuple[int, int, int]]]
    )

    def push(self, delta: Delta) -> None:
        """Take streamed text, unless a newer request of the same turn was heard of."""
        turn, order = self._newest.get(delta.session_id, (delta.turn_id, delta.order))
        if turn == delta.turn_id and delta.order < order:
            return
        self._newest[delta.session_id] = (delta.turn_id, delta.order)
        if self._characters + len(delta.text) > MAX_DELTA_CHARACTERS:
            self._deltas.clear()
            self._characters = 0
        if len(delta.text) <= MAX_DELTA_CHARACTERS:
            self._deltas.append(delta)
            self._characters += len(delta.text)
        self.wake.set()

    def take_deltas(self) -> list[Delta]:
        taken, self._characters = list(self._deltas), 0
        self._deltas.clear()
        return taken


class Feed:
    """A value that is read again when a hint came, and rarely without one. Wakes its viewers when it differs.

    ``trouble`` says why the newest read failed; the value before it stays.
    """

    def __init__(self, read: Callable[[], bool], period_seconds: float) -> None:
        self.viewers: set[Viewer] = set()
        self.trouble: str | None = None
        self.is_read = False
        self._read, self._period = read, period_seconds
        self._hinted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def hint(self) -> None:
        self._hinted.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            # Before the read: a change that happens during it has its own hint.
            self._hinted.clear()
            changed, before = False, self.trouble
            try:
                changed = await asyncio.to_thread(self._read)
                self.trouble = None
            except TeamError as error:
                self.trouble = error.message
            except Exception:
                _log.exception("view not read")
                self.trouble = "The view cannot be read; the coordinator's log says why."
            if changed or not self.is_read or self.trouble != before:
                self.is_read = True
                for viewer in self.viewers:
                    viewer.wake.set()
            await asyncio.sleep(self._period)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REREAD_SECONDS):
                    await self._hinted.wait()


class TeamFeed(Feed):
    """One Team. Each collection has a version that changes with its content, and is the same in every coordinator."""

    def __init__(self, team_id: TeamId, read: Callable[[str], TeamState]) -> None:
        super().__init__(self._refresh, PERIOD_SECONDS)
        self.team_id = team_id
        self.team: TeamWire | None = None
        self.versions: dict[str, str] = dict.fromkeys(COLLECTIONS, "")
        self.statuses: dict[str, SessionStatus] = {}
        self._state_of = read

    def _refresh(self) -> bool:
        found = self._state_of(self.team_id)
        changed = self._replace(found.team)
        for status in found.sessions:
            if self.statuses.get(status.id) != status:
                self.statuses[status.id] = status
                changed = True
        return changed

    def _replace(self, team: TeamWire) -> bool:
        before = self.team
        if before == team:
            return False
        touched = [name for name in COLLECTIONS if before is None or getattr(before, name) != getattr(team, name)]
        self.versions = {**self.versions, **{name: _version(team, name) for name in touched}}
        self.team = team
        return True


def _version(team: TeamWire, name: str) -> str:
    content = team.model_dump_json(by_alias=True, include={name})
    return hashlib.blake2b(content.encode(), digest_size=9).hexdigest()


class ListFeed(Feed):
    """The list of Teams."""

    def __init__(self, read: Callable[[], list[TeamSummary]]) -> None:
        super().__init__(self._refresh, LIST_PERIOD_SECONDS)
        self.teams: list[TeamSummary] = []
        self.version = 0
        self._list = read

    def _refresh(self) -> bool:
        found = self._list()
        if found == self.teams and self.version:
            return False
        self.teams, self.version = found, self.version + 1
        return True
