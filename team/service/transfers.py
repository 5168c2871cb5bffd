"""TransferService: Session trees as JSON lines, out of one store and into another."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from team.log import transfer
from team.log.transaction import Transaction
from team.log.transfer import Part
from team.model.errors import OutsideWorkspace, RequestInvalid
from team.model.events import SessionCwd
from team.model.ids import SessionId
from team.model.values import Value
from team.rules.continuation import continue_session
from team.service.callers import Once, Recorded
from team.service.store import Store
from team.service.workspace import directory_within


class ImportedView(Value):
    """What an import brought: the Sessions in the order of the file, and how many events they have."""

    sessions: tuple[SessionId, ...]
    events: int


class TransferService:
    """Export and import."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def export(self, session_id: str) -> Iterator[str]:
        """The lines of a Session and its descendants as of now, each with its line end. Raises SessionNotFound.

        The lines are read in pages while they are consumed; what is appended meanwhile is not among them.
        """
        with self._store.reading() as connection:
            parts = transfer.cut(connection, session_id)
        return self._lines(parts)

    def _lines(self, parts: list[Part]) -> Iterator[str]:
        for place, part in enumerate(parts):
            yield transfer.header_line(part, len(parts) if place == 0 else None)
            after = 0
            while after < part.through:
                # A page per transaction: a slow reader must not hold one open.
                with self._store.reading() as connection:
                    page, after = transfer.event_lines(connection, part, after)
                yield from page

    def import_(self, lines: Iterable[str], once: Once | None = None) -> ImportedView:
        """Import whole Session trees in one transaction, and let their open turns go on here.

        The lines are read and folded before the transaction begins, so that a slow sender blocks nobody. A Session
        whose directory is none of this workspace goes on in its root, and its log says so. A repeated key returns what
        the first request brought.

        Raises:
            LogDamaged: A line cannot be read, or does not fit its log; the error names the line and the event.
            SessionExists: The store, or the file itself, has such a Session already.
            ProfileUnknown: A Session uses a profile that this deployment does not have.
        """
        with transfer.reading(lines) as incoming:
            headers = [session.header for session in incoming.sessions]
            for name in {header.profile for header in headers}:
                self._store.profile(name)

            moved = {session.header.id: cwd for session in incoming.sessions if (cwd := self._moved(session.head.cwd))}
            imported = ImportedView(
                sessions=tuple(header.id for header in headers),
                events=sum(session.head.seq for session in incoming.sessions),
            )

            def insert(tx: Transaction) -> ImportedView:
                transfer.insert(tx.connection, incoming, tx.now)
                for header in headers:
                    if header.depth == 0:
                        tx.lock_team(header.team_id)
                tx.lock_sessions(*(header.id for header in headers))
                for header in headers:
                    if header.id in moved:
                        tx.append(header.id, SessionCwd(cwd=moved[header.id]))
                    continue_session(tx, header)
                return imported

            result = self._store.writing_once(once, ImportedView, insert)
            assert not isinstance(result, Recorded)
            return result

    def _moved(self, cwd: str) -> str | None:
        """Where a Session goes on whose directory ``cwd`` is none of this workspace; None when it is one."""
        root = self._store.settings.workspace_root
        try:
            inside = directory_within(root, cwd)
        except (OutsideWorkspace, RequestInvalid, ValueError, OSError):
            # Whatever is wrong with a path of another machine, the root is one of ours.
            return directory_within(root, ".")
        return None if Path(cwd).is_absolute() else inside
