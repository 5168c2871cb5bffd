"""Server-sent events: one stream for everything that a browser shows.

A stream holds no queue: states are sent in their newest version, log events are read behind the cursor when the reader
is ready for more. The ``id`` of a frame is the cursor behind it, so ``Last-Event-ID`` resumes without loss or doubling.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from team.api.bodies import ERRORS
from team.dispatch.feeds import Delta, TeamFeed
from team.dispatch.viewers import MAX_VIEWERS, Followed, Viewers
from team.model.errors import RequestInvalid, StoreUnavailable
from team.model.ids import MAX_SAFE_INTEGER, TeamId
from team.model.wire import SessionStatus
from team.service.panel import PanelService

HEARTBEAT_SECONDS: Final = 10.0
PAGE_EVENTS: Final = 100
MAX_FOLLOWED: Final = 32
RETRY_MILLISECONDS: Final = 1_000
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def stream_router(viewers: Viewers, panel: PanelService) -> APIRouter:
    """The event stream."""
    router = APIRouter(prefix="/v1", responses=ERRORS)

    @router.get(
        "/stream",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def stream(
        team: Annotated[
            list[str] | None, Query(max_length=MAX_FOLLOWED, description="A Team; may be repeated.")
        ] = None,
        session: Annotated[
            list[str] | None,
            Query(max_length=MAX_FOLLOWED, description="SESSION:SEQ, a Session and the seq behind which to begin."),
        ] = None,
        teams: Annotated[bool, Query(description="Whether to send the list of Teams.")] = False,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> StreamingResponse:
        """Follow Teams and Sessions.

        Events: `hello` (the clock), `teams` (the list), `team` (a whole Team projection with the version of each
        collection), `sessions` (live status of the Sessions that changed), `log` (events of a followed Session, in
        order), `delta` (streamed text, may be lost), `fault` (a log that cannot be read further), `resync` (forget the
        events of these Sessions; they follow from the first), `trouble` (why the newest state is not known).
        """
        if viewers.count >= MAX_VIEWERS:
            raise StoreUnavailable(f"{MAX_VIEWERS} streams are open, the limit; close one and try again.")
        wanted = dict(_position(text) for text in session or ())
        positions, foreign = await asyncio.to_thread(_resume, panel, wanted, last_event_id)
        roots = [await asyncio.to_thread(panel.root_of, session_id) for session_id in wanted]
        team_ids = [await asyncio.to_thread(panel.root_of, team_id) for team_id in team or ()]
        follower = Follower(viewers, panel, positions, foreign)
        body = follower.frames([*team_ids, *roots], listing=teams)
        return StreamingResponse(body, media_type="text/event-stream", headers=_HEADERS)

    return router


def _position(text: str) -> tuple[str, int]:
    session_id, _, after = text.partition(":")
    if not after.isascii() or not after.isdigit() or int(after) > MAX_SAFE_INTEGER:
        raise RequestInvalid(f"session={text[:80]!r}: write SESSION:SEQ, such as {session_id[:40]}:0.")
    return session_id, int(after)


def _resume(panel: PanelService, wanted: dict[str, int], cursor: str | None) -> tuple[dict[str, int], list[str]]:
    """Where each Session goes on, and the Sessions whose cursor is none of this store. Raises SessionNotFound."""
    given = dict(wanted)
    foreign = set[str]()
    if cursor:
        try:
            given.update({name: seq for name, seq in map(_position, cursor.split(",")) if name in wanted})
        except RequestInvalid:
            foreign = set(wanted)
    foreign |= {session_id for session_id, after in given.items() if after > panel.last_seq(session_id)}
    return {name: 0 if name in foreign else given[name] for name in wanted}, sorted(foreign)


@dataclass
class Follower:
    """The frames of one connection."""

    viewers: Viewers
    panel: PanelService
    positions: dict[str, int]
    foreign: Sequence[str] = ()
    _sent_versions: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    _sent_closed: dict[str, bool] = field(default_factory=dict[str, bool])
    _sent_statuses: dict[str, SessionStatus] = field(default_factory=dict[str, SessionStatus])
    _sent_list: int = 0
    _sent_trouble: str | None = None
    _faults: dict[str, int] = field(default_factory=dict[str, int])

    async def frames(self, team_ids: Sequence[TeamId], *, listing: bool) -> AsyncGenerator[bytes]:
        """Everything that changes, until the reader or the coordinator goes away."""
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        yield _frame("hello", {"now": time.time()})
        if self.foreign:
            yield _frame("resync", {"sessions": list(self.foreign)}, self.cursor)
        async with self.viewers.following(team_ids, self.positions, listing=listing) as followed:
            while not self.viewers.is_closing:
                # Before looking: whatever changes from here on wakes us again.
                followed.viewer.wake.clear()
                quiet = True
                async for frame in self._changes(followed):
                    quiet = False
                    yield frame
                if quiet and not self.viewers.is_closing:
                    try:
                        async with asyncio.timeout(HEARTBEAT_SECONDS):
                            await followed.viewer.wake.wait()
                    except TimeoutError:
                        yield b": alive\n\n"

    @property
    def cursor(self) -> str:
        return ",".join(f"{session_id}:{seq}" for session_id, seq in self.positions.items())

    async def _changes(self, followed: Followed) -> AsyncGenerator[bytes]:
        listing = followed.listing
        if listing is not None and listing.version != self._sent_list:
            self._sent_list = listing.version
            yield _frame("teams", {"teams": [row.to_wire() for row in listing.teams]})
        for feed in followed.teams:
            for frame in self._team(feed):
                yield frame
        trouble = next((feed.trouble for feed in followed.teams if feed.trouble), listing.trouble if listing else None)
        if trouble != self._sent_trouble:
            self._sent_trouble = trouble
            yield _frame("trouble", {"message": trouble} if trouble else {})
        for session_id in self.positions:
            async for frame in self._log(session_id, followed):
                yield frame
        for delta in followed.viewer.take_deltas():
            yield _frame("delta", _delta_json(delta))

    def _team(self, feed: TeamFeed) -> list[bytes]:
        frames = list[bytes]()
        team, versions = feed.team, feed.versions
        if team is None:
            return frames
        if self._sent_versions.get(team.team_id) != versions or self._sent_closed.get(team.team_id) != team.closed:
            self._sent_versions[team.team_id], self._sent_closed[team.team_id] = versions, team.closed
            frames.append(_frame("team", {**team.to_wire(), "versions": versions}))
        changed = [status for name, status in feed.statuses.copy().items() if self._sent_statuses.get(name) != status]
        if changed:
            self._sent_statuses.update({status.id: status for status in changed})
            frames.append(
                _frame("sessions", {"teamId": team.team_id, "sessions": [status.to_wire() for status in changed]})
            )
        return frames

    async def _log(self, session_id: str, followed: Followed) -> AsyncGenerator[bytes]:
        """Pages behind the cursor as far as the log goes now."""
        while not self.viewers.is_closing:
            newest = _newest(followed.teams, session_id)
            after = self.positions[session_id]
            if newest <= after or self._faults.get(session_id, -1) == after:
                return
            try:
                events, damage = await asyncio.to_thread(self.panel.events, session_id, after, PAGE_EVENTS)
            except StoreUnavailable:
                # The feed tells it, and wakes us when the database is back.
                return
            if events:
                self.positions[session_id] = events[-1].seq
                page = {"sessionId": session_id, "events": [event.to_wire() for event in events]}
                yield _frame("log", page, self.cursor)
            if damage is not None:
                self._faults[session_id] = self.positions[session_id]
                yield _frame("fault", {"sessionId": session_id, "message": damage.message})
            if not events:
                return


def _newest(feeds: Sequence[TeamFeed], session_id: str) -> int:
    """The newest seq of a Session that a feed has seen."""
    return max((feed.statuses[session_id].last_seq for feed in feeds if session_id in feed.statuses), default=0)


def _delta_json(delta: Delta) -> dict[str, Any]:
    return {
        "sessionId": delta.session_id,
        "turnId": delta.turn_id,
        "epoch": delta.epoch,
        "step": delta.step,
        "attempt": delta.attempt,
        "offset": delta.offset,
        "text": delta.text,
    }


def _frame(event: str, data: dict[str, Any], cursor: str | None = None) -> bytes:
    # JSON has no line break outside of strings, and escapes those inside: one data line is enough.
    lines = [f"event: {event}", *([] if cursor is None else [f"id: {cursor}"])]
    lines.append("data: " + json.dumps(data, separators=(",", ":"), ensure_ascii=False))
    return ("\n".join(lines) + "\n\n").encode()
