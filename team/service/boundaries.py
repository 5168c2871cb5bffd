"""The step boundary of a turn: it parks, takes its next step, or ends, for good or at one of its limits."""

from config.profiles import Profile
from team.log import projections, sessions, waits
from team.log.runs import Run
from team.log.transaction import Transaction
from team.model.claims import BoundaryResult
from team.model.content import ContentBlock, text_block
from team.model.errors import TurnConflict
from team.model.ids import SessionId
from team.model.slices import TurnSlice
from team.rules import budgets, capture, identity, turns, waiting
from team.service.claims import model_of
from team.service.store import Store


class Boundary:
    """One boundary of one turn. ``may_end`` is asked first: it judges the limits before anything is locked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._excess: str | None = None

    def may_end(self, tx: Transaction, run: Run) -> bool:
        """Whether the Team's lock may be needed: the turn may end, or its waits may be decided.

        What it finds of budgets holds for ``pass_on``: other members may use more meanwhile, but a turn that may not
        end has not taken the locks of an end.
        """
        found = sessions.find_session(tx.connection, run.session_id)
        profile = self._store.profile(found.header.profile)
        self._excess = budgets.exceeded(tx, profile, run.team_id, run.turn_id)
        if self._excess is not None:
            return True
        turn = projections.load(tx.connection, run.session_id, ("turn", run.turn_id))
        if not isinstance(turn, TurnSlice) or not turn.answered:
            return False
        if capture.schema_of(found.head) is not None:
            return True
        return turn.calls == 0 or turn.open_calls > 0 or turn.step >= self._limit(profile)

    def pass_on(self, tx: Transaction, run: Run, turn: TurnSlice) -> BoundaryResult:
        """End the open step and go on. Raises TurnConflict for a call with neither a result nor an open wait."""
        session_id = run.session_id
        if turn.step_open and turn.answered and turn.open_calls:
            open_waits = waits.turn_waits(tx.connection, turn.turn_id)
            if len(open_waits) < turn.open_calls:
                raise TurnConflict(f"Step {turn.step} has calls without a result; run them first.")
            if not waiting.settle_before_parking(tx, session_id, open_waits):
                turns.park(tx, session_id, turn, open_waits, "waits for its calls")
                return BoundaryResult(action="parked")
            turn = turns.current(tx, session_id, turn)
            if turn.open_calls:
                rest = waits.turn_waits(tx.connection, turn.turn_id)
                turns.park(tx, session_id, turn, rest, "waits for its calls")
                return BoundaryResult(action="parked")
        if turn.step_open and not turn.answered:
            return BoundaryResult(action="step", step=turn.step)
        return self._next_step(tx, session_id, turn)

    def _next_step(self, tx: Transaction, session_id: SessionId, turn: TurnSlice) -> BoundaryResult:
        profile = self._store.profile_of(tx, session_id)
        limit, excess, report = self._limit(profile), self._excess, "free"
        if turn.step_open:
            turn = turns.end_step(tx, session_id, turn)
            report = capture.standing(tx, session_id, turn)
            if report == "reported":
                turns.end(tx, session_id, turn, "completed")
                return BoundaryResult(action="ended", reason="completed")
            if report == "failed":
                turns.end(tx, session_id, turn, "error", code=capture.CODE, message=capture.FAILURE)
                return BoundaryResult(action="ended", reason="error")
            if (
                report == "free"
                and turn.calls == 0
                and (turn.step >= limit or excess or not tx.head(session_id).pending_steer)
            ):
                reason = turns.end_reason(turn)
                turns.end(tx, session_id, turn, reason)
                return BoundaryResult(action="ended", reason=reason)
        if turn.step >= limit:
            message = f"The turn took {turn.step} steps, its limit."
            turns.end(tx, session_id, turn, "max-steps", message=message)
            return BoundaryResult(action="ended", reason="max-steps")
        if excess is not None:
            turns.end(tx, session_id, turn, "error", code=budgets.CODE, message=excess)
            return BoundaryResult(action="ended", reason="error")
        model, wanted = model_of(self._store, tx, session_id), capture.schema_of(tx.head(session_id))
        header = self._store.header_of(profile, model, wanted)
        step = turns.start_step(tx, session_id, turn, header, self._identity(tx, session_id))
        if report == "missing":
            capture.remind(tx, session_id)
        return BoundaryResult(action="step", step=step)

    def _identity(self, tx: Transaction, session_id: SessionId) -> tuple[ContentBlock, ...]:
        header = tx.header(session_id)
        profile = self._store.profile(header.profile)
        text = identity.text(header, tx.member_of(header), tx.head(session_id), is_team=profile.is_team)
        return text_block(text)

    def _limit(self, profile: Profile) -> int:
        return profile.max_steps or self._store.settings.max_steps
