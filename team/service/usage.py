"""UsageService: what each member of a Team has used, and how much of its budgets is left (docs/limits.md)."""

from team.log import sessions
from team.log.sessions import LockedSession
from team.model.errors import SessionNotFound
from team.model.ids import LEAD_NAME, SessionId
from team.model.snapshots import MemberSnapshot
from team.model.usage import BudgetView, SessionUsageView, UsageView
from team.service.panel import roster_and_board
from team.service.store import Store


class UsageService:
    """Reads the totals that each Session's head keeps; costs the same however long the logs are."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def usage(self, root_id: str) -> UsageView:
        """Every Session of a root's tree, the Lead first, then in order of creation, parents before children.

        A Session that cannot be read is named with its fault and counts nothing. Raises SessionNotFound for an unknown
        id, and for a Session that is no root.
        """
        with self._store.reading() as connection:
            root = sessions.find_session(connection, root_id)
            if root.header.depth != 0:
                raise SessionNotFound(f"{root_id} leads no Team; its Team is {root.header.root_id}.")
            roster, _tasks, _damage = roster_and_board(connection, root.header)
            found, faults = sessions.readable_tree(connection, root_id)
            used = sessions.spent(connection, root_id, self._store.database.now(connection), count_tokens=True)
        names = {member.id: member for member in roster}
        settings = self._store.settings
        rows = [_row(session, names) for session, _created in found]
        unread = [SessionUsageView(session_id=SessionId(each), name="?", fault=fault) for each, fault in faults.items()]
        return UsageView(
            team_id=root.header.team_id,
            sessions=(*rows, *unread),
            budget=BudgetView(
                tokens=used.tokens,
                turns=used.turns,
                seconds=round(used.seconds, 3),
                max_tokens=settings.max_team_tokens,
                max_turns=settings.max_team_turns,
                max_seconds=settings.max_team_seconds,
            ),
        )


def _row(session: LockedSession, roster: dict[SessionId, MemberSnapshot]) -> SessionUsageView:
    header, head = session.header, session.head
    member = roster.get(header.id)
    label = head.descriptor.label if head.descriptor else "subagent"
    totals = head.totals
    return SessionUsageView(
        session_id=header.id,
        name=LEAD_NAME if header.depth == 0 else member.name if member else label,
        is_member=header.depth == 0 or member is not None,
        model=head.model,
        turns=head.turns,
        steps=totals.steps,
        calls=totals.calls,
        tool_ms=totals.tool_ms,
        input_tokens=totals.input_tokens,
        cached_tokens=totals.cached_tokens,
        output_tokens=totals.output_tokens,
        compactions=totals.compactions,
    )
