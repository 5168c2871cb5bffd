"""The viewers of one coordinator: what they follow, and the hints from Redis that make it fast.

A hint only causes a read; the database decides what is shown. Without any hint a view is a few seconds old at most.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from config.broker import redis_url
from config.settings import Settings
from team.dispatch.feeds import Feed, ListFeed, TeamFeed, Viewer, read_delta
from team.dispatch.outbox import activity_channel
from team.model.ids import TeamId
from team.service.panel import PanelService

_log = structlog.get_logger(__name__)

RECONNECT_SECONDS: Final = 0.5
MAX_VIEWERS: Final = 256


def delta_channel(key_prefix: str, session_id: str) -> str:
    """The channel on which workers publish the text that a Session's model streams."""
    return f"{key_prefix}delta:{session_id}"


@dataclass(frozen=True)
class Followed:
    """What one viewer looks at, and where it finds it."""

    viewer: Viewer
    teams: tuple[TeamFeed, ...]
    listing: ListFeed | None


class Viewers:
    """All streams of this coordinator share one subscription and one read per Team."""

    def __init__(self, settings: Settings, panel: PanelService) -> None:
        self._settings, self._panel = settings, panel
        self._teams: dict[TeamId, TeamFeed] = {}
        self._listing: ListFeed | None = None
        self._channels: dict[str, set[Viewer]] = {}
        self._viewers: set[Viewer] = set()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_closing = False

    @property
    def count(self) -> int:
        return len(self._viewers)

    def start(self) -> None:
        """Begin to listen; called in the event loop that serves."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._listen(), name="viewers")

    def close(self) -> None:
        """End all streams, so that the server can stop; may be called from a signal handler."""
        self.is_closing = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for viewer in self._viewers:
            viewer.wake.set()

    @asynccontextmanager
    async def following(
        self, team_ids: Iterable[TeamId], session_ids: Iterable[str], *, listing: bool
    ) -> AsyncGenerator[Followed]:
        """Follow Teams, the streamed text of Sessions, and the list of Teams, as long as the block lasts."""
        viewer, prefix = Viewer(), self._settings.key_prefix
        teams = tuple(self._team(team_id) for team_id in dict.fromkeys(team_ids))
        feeds: list[Feed] = list(teams)
        channels = [delta_channel(prefix, session_id) for session_id in session_ids]
        found: ListFeed | None = None
        if listing:
            found = self._list()
            feeds.append(found)
        self._viewers.add(viewer)
        for feed in feeds:
            feed.viewers.add(viewer)
        for channel in channels:
            self._channels.setdefault(channel, set()).add(viewer)
        self._changed.set()
        try:
            yield Followed(viewer, teams, found)
        finally:
            self._viewers.discard(viewer)
            for feed in feeds:
                feed.viewers.discard(viewer)
            for channel in channels:
                self._channels[channel].discard(viewer)
            self._forget()

    def _team(self, team_id: TeamId) -> TeamFeed:
        feed = self._teams.get(team_id)
        if feed is None:
            feed = self._teams[team_id] = TeamFeed(team_id, self._panel.state)
            feed.start()
        return feed

    def _list(self) -> ListFeed:
        if self._listing is None:
            self._listing = ListFeed(self._panel.teams)
            self._listing.start()
        return self._listing

    def _forget(self) -> None:
        """Drop what nobody looks at any more."""
        for team_id, feed in list(self._teams.items()):
            if not feed.viewers:
                feed.stop()
                del self._teams[team_id]
        if self._listing is not None and not self._listing.viewers:
            self._listing.stop()
            self._listing = None
        self._channels = {channel: viewers for channel, viewers in self._channels.items() if viewers}
        self._changed.set()

    # The subscription.

    @property
    def _patterns(self) -> set[str]:
        # The list looks at every Team.
        return {activity_channel(self._settings.key_prefix, "*")} if self._listing is not None else set()

    @property
    def _wanted(self) -> set[str]:
        return {activity_channel(self._settings.key_prefix, team_id) for team_id in self._teams} | set(self._channels)

    async def _listen(self) -> None:
        reported = False
        while not self.is_closing:
            try:
                if not self._wanted and not self._patterns:
                    self._changed.clear()
                    await self._changed.wait()
                await self._follow()
                reported = False
            except (RedisError, OSError, TimeoutError) as error:
                if not reported:
                    _log.warning("viewers hear no hints", error=type(error).__name__)
                reported = True
            except Exception:
                _log.exception("viewers hear no hints")
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self) -> None:
        """Follow the wanted channels until nobody wants any, or the connection breaks."""
        client: Any = redis.asyncio.Redis.from_url(  # pyright: ignore[reportUnknownMemberType] -- untyped library
            redis_url(self._settings.broker_url),
            socket_connect_timeout=5,
            socket_keepalive=True,
            health_check_interval=5,
            decode_responses=True,
        )
        async with client, client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscribed, patterns = set[str](), set[str]()
            reader: asyncio.Task[None] | None = None
            try:
                while not self.is_closing and (self._wanted or self._patterns):
                    self._changed.clear()
                    fresh = await _match(subscribed, self._wanted, subscription.subscribe, subscription.unsubscribe)
                    fresh |= await _match(patterns, self._patterns, subscription.psubscribe, subscription.punsubscribe)
                    if fresh:
                        # What changed between a feed's first read and its subscription was not heard.
                        self._hint_all()
                    if reader is None:
                        reader = asyncio.create_task(self._read(subscription))
                    changed = asyncio.create_task(self._changed.wait())
                    done, _ = await asyncio.wait({reader, changed}, return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    if reader in done:
                        await reader
            finally:
                if reader is not None:
                    reader.cancel()
                    with contextlib.suppress(asyncio.CancelledError, RedisError, OSError):
                        await reader

    def _hint_all(self) -> None:
        for feed in self._teams.values():
            feed.hint()
        if self._listing is not None:
            self._listing.hint()

    async def _read(self, subscription: Any) -> None:
        deltas, activity = delta_channel(self._settings.key_prefix, ""), activity_channel(self._settings.key_prefix, "")
        while True:
            message: dict[str, str] | None = await subscription.get_message(timeout=5.0)
            if message is None:
                continue
            channel = message["channel"]
            if channel.startswith(deltas):
                delta = read_delta(channel.removeprefix(deltas), message["data"])
                if delta is not None:
                    for viewer in self._channels.get(channel, ()):
                        viewer.push(delta)
            elif channel.startswith(activity):
                feed = self._teams.get(TeamId(channel.removeprefix(activity)))
                if feed is not None:
                    feed.hint()
                if self._listing is not None:
                    self._listing.hint()


async def _match(current: set[str], wanted: set[str], add: Any, remove: Any) -> bool:
    """Subscribe and unsubscribe until ``current`` equals ``wanted``; whether something was added."""
    extra, missing = current - wanted, wanted - current
    if extra:
        await remove(*extra)
    if missing:
        await add(*missing)
    current.difference_update(extra)
    current.update(missing)
    return bool(missing)
