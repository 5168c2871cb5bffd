"""Budgets: what a Team may use after a human prompt, and how long a turn may take (docs/limits.md).

They are judged at each step boundary, before the next model request. Whoever is beyond one ends as ``error/budget``:
its pending input is held, its Lead is told, and a Team whose members answer each other for ever comes to rest.
"""

from config.profiles import Profile
from config.settings import Settings
from team.log import runs, sessions
from team.log.transaction import Transaction
from team.model.ids import TeamId, TurnId

CODE = "budget"
"""The code of a turn that a budget ended."""

RENEWED = "A human prompt to any member of the Team begins a new count."
"""What to do about it, for whoever reads how a turn ended."""


def exceeded(tx: Transaction, profile: Profile, team_id: TeamId, turn_id: TurnId) -> str | None:
    """Which budget the next step would go beyond, in words; None when it may begin.

    Reads no log and locks nothing: members who pass at the same time may each take one step more.
    """
    turn = _turn(tx, profile.max_turn_seconds or tx.settings.max_turn_seconds, turn_id)
    if turn is not None:
        return turn
    team = _team(tx, tx.settings, team_id)
    return None if team is None else f"{team} {RENEWED}"


def _turn(tx: Transaction, limit: float | None, turn_id: TurnId) -> str | None:
    since = runs.first_claimed(tx.connection, turn_id) if limit is not None else None
    if limit is None or since is None or tx.now - since < limit:
        return None
    return f"The turn has taken {tx.now - since:.0f} s; {limit:g} s is the limit (max_turn_seconds)."


def _team(tx: Transaction, settings: Settings, team_id: TeamId) -> str | None:
    limits = (settings.max_team_turns, settings.max_team_tokens, settings.max_team_seconds)
    if all(limit is None for limit in limits):
        return None
    turns, tokens, seconds = limits
    used = sessions.spent(tx.connection, team_id, tx.now, count_tokens=tokens is not None)
    if turns is not None and used.turns > turns:
        return f"The Team has begun {used.turns} turns since the last prompt; {turns} is the limit (max_team_turns)."
    if tokens is not None and used.tokens >= tokens:
        return f"The Team has used {used.tokens} tokens since the last prompt; {tokens} is the limit (max_team_tokens)."
    if seconds is not None and used.seconds >= seconds:
        return (
            f"The Team has worked {used.seconds:.0f} s since the last prompt; {seconds:g} s is the limit "
            "(max_team_seconds)."
        )
    return None
