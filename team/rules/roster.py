"""The roster: membership, names, provisioning in two commits, availability (DESIGN section 6)."""

from dataclasses import dataclass

from team.log import operations, runs, sessions
from team.log.transaction import Transaction
from team.model.errors import (
    Disposed,
    InvalidArgument,
    InvalidMemberName,
    InvalidTarget,
    LeadRequired,
    MemberLimit,
    MemberNameTaken,
    MemberNotFound,
    NotMember,
    ProvisioningConflict,
)
from team.model.events import MemberChanged
from team.model.ids import LEAD_NAME, SessionId, TeamId, new_session_id
from team.model.slices import HeadSlice
from team.model.snapshots import MAX_NAME_LENGTH, UNOWNED, Context, MemberSnapshot, SessionHeader, is_member_name
from team.model.views import Availability, MemberView, availability

MAX_DESCRIPTION_CHARACTERS = 200


@dataclass(frozen=True)
class Member:
    """One addressable member. ``snapshot`` is None for the Lead, who exists by identity."""

    target: str
    session_id: SessionId
    snapshot: MemberSnapshot | None

    @property
    def is_lead(self) -> bool:
        return self.snapshot is None


def lead_of(team_id: TeamId) -> Member:
    return Member(LEAD_NAME, SessionId(team_id), None)


def is_member(tx: Transaction, header: SessionHeader) -> bool:
    """Whether a Session is in a roster: every root is the Lead of its own Team."""
    return header.depth == 0 or tx.member_of(header) is not None


def name_of(tx: Transaction, header: SessionHeader) -> str:
    """The display name of a Session: its target in the Team, else its descriptor's label."""
    if header.depth == 0:
        return LEAD_NAME
    member = tx.member_of(header)
    if member is not None:
        return member.name
    descriptor = tx.head(header.id).descriptor
    return descriptor.label if descriptor else "subagent"


def caller(tx: Transaction, header: SessionHeader) -> Member:
    """The member that acts. Raises NotMember for Sessions outside the roster and for failed members."""
    if header.depth == 0:
        return lead_of(header.team_id)
    snapshot = tx.member_of(header)
    if snapshot is None:
        raise NotMember("This Session is not a member of a Team; Team tools are for the Lead and its teammates.")
    if snapshot.phase == "failed":
        raise NotMember(f"The member {snapshot.name} failed at its creation and cannot act: {snapshot.error}.")
    return Member(snapshot.name, snapshot.id, snapshot)


def require_lead(member: Member, what: str) -> None:
    if not member.is_lead:
        raise LeadRequired(f"Only the Lead may {what}; send the Lead a message instead.")


def resolve(tx: Transaction, team_id: TeamId, target: str) -> Member:
    """The one resolver of names, for every tool: the exact roster name or exactly ``lead``.

    Raises MemberNotFound, which shows the received name escaped beside the valid ones.
    """
    if target == LEAD_NAME:
        return lead_of(team_id)
    roster = tx.members(team_id)
    for snapshot in roster:
        if snapshot.name == target:
            return Member(snapshot.name, snapshot.id, snapshot)
    valid = ", ".join([LEAD_NAME, *(snapshot.name for snapshot in roster)])
    raise MemberNotFound(f"There is no member {target[:80]!a}. Exact names: {valid}.")


def require_reachable(member: Member) -> None:
    """Refuse a failed or still provisioning member. Raises InvalidTarget."""
    if member.snapshot is not None and member.snapshot.phase != "active":
        phase, error = member.snapshot.phase, member.snapshot.error
        why = f": {error}" if error else ""
        raise InvalidTarget(f"{member.target} is {phase}{why}. Address an active member; see list_agents.")


def require_open(tx: Transaction, team_id: TeamId) -> None:
    if sessions.is_closed(tx.connection, team_id):
        raise Disposed("This Team was closed; start or resume a run to work with it again.")


def reserve(
    tx: Transaction,
    lead: Member,
    team_id: TeamId,
    *,
    name: str,
    description: str,
    context: Context,
    model: str | None,
    call_key: str,
    actor: str | None,
) -> MemberSnapshot:
    """Commit 1 of a creation: reserve the name for ever and the child's Session id.

    Idempotent by ``call_key``: a retried call joins its own operation, or learns how it failed. Raises LeadRequired,
    InvalidMemberName, MemberNameTaken, MemberLimit, InvalidArgument, Disposed, ProvisioningConflict.
    """
    require_lead(lead, "create teammates")
    require_open(tx, team_id)
    require_description(name, description)
    roster = tx.members(team_id)
    lease_until = tx.now + tx.settings.lease_seconds
    for snapshot in roster:
        if snapshot.name == name:
            if operations.operation_key(tx.connection, team_id, name) == call_key:
                require_unsettled(tx, team_id, name)
                operations.renew_operation(tx.connection, team_id, name, lease_until)
                return snapshot
            raise MemberNameTaken(
                f"The name {name} is taken for ever, {snapshot.phase} now. See list_agents; message that member with "
                "send_message, or choose a new name."
            )
    require_room(tx, team_id)
    snapshot = MemberSnapshot(
        id=new_session_id(),
        name=name,
        description=description,
        provider=context,
        context=context,
        phase="provisioning",
        model=model,
    )
    tx.append(SessionId(team_id), MemberChanged(team_id=team_id, member=snapshot, actor=actor))
    operations.open_operation(tx.connection, team_id, name, call_key, lease_until)
    tx.raise_edge(team_id)
    return snapshot


def require_description(name: str, description: str) -> None:
    """Raises InvalidMemberName, InvalidArgument."""
    if not is_member_name(name):
        raise InvalidMemberName(
            f"{name[:80]!a} is not a member name: use lowercase kebab-case, at most {MAX_NAME_LENGTH} characters, "
            f"not '{LEAD_NAME}' or '{UNOWNED}'."
        )
    if not description.strip():
        raise InvalidArgument("A teammate needs a description: one line on what it is for.")


def require_room(tx: Transaction, team_id: TeamId) -> None:
    """Raises MemberLimit: the Team has used all names that it may have."""
    if len(tx.members(team_id)) >= tx.settings.max_members:
        raise MemberLimit(
            f"This Team has used all of its {tx.settings.max_members} member names, failed ones included. "
            "Give the work to an existing member with send_message."
        )


def settle(
    tx: Transaction, team_id: TeamId, snapshot: MemberSnapshot, *, error: str | None, actor: str | None = None
) -> MemberSnapshot:
    """Append the terminal phase of a creation: ``active``, or ``failed`` with its reason."""
    after = snapshot.model_copy(update={"phase": "failed" if error else "active", "error": error})
    tx.append(SessionId(team_id), MemberChanged(team_id=team_id, member=after, actor=actor))
    end_operation = operations.fail_operation if error else operations.close_operation
    end_operation(tx.connection, team_id, snapshot.name)
    tx.raise_edge(team_id)
    return after


def require_unsettled(tx: Transaction, team_id: TeamId, name: str) -> MemberSnapshot:
    """Re-read the phase of an own creation. Raises ProvisioningConflict when it was settled as ``failed`` meanwhile."""
    snapshot = tx.find(SessionId(team_id), ("member", name), MemberSnapshot)
    assert snapshot is not None
    if snapshot.phase == "failed":
        raise ProvisioningConflict(
            f"The creation of {name} was settled as failed while it went on ({snapshot.error}); no teammate was left "
            "behind. Spawn one under a new name."
        )
    return snapshot


def status_of(tx: Transaction, member: Member) -> Availability:
    """The availability projection of one member whose Session may be unlocked."""
    phase = "active" if member.snapshot is None else member.snapshot.phase
    return availability(phase, runs.session_run(tx.connection, member.session_id) is not None)


def member_view(
    member: Member, status: Availability, head: HeadSlice | None, diagnostics: tuple[str, ...] = ()
) -> MemberView:
    """What a model sees of a member."""
    snapshot = member.snapshot
    model = head.model if head is not None and head.model is not None else None
    if snapshot is None:
        return MemberView(target=member.target, role="lead", status=status, model=model, diagnostics=diagnostics)
    return MemberView(
        target=member.target,
        role="teammate",
        status=status,
        description=snapshot.description,
        provider=snapshot.provider,
        context=snapshot.context,
        model=model or snapshot.model,
        diagnostics=diagnostics,
    )


def head_of(tx: Transaction, session_id: SessionId) -> HeadSlice | None:
    """A head read without a lock, for views."""
    found = sessions.find_sessions(tx.connection, [session_id])
    return found[session_id].head if session_id in found else None
