"""The worker's side of the guard, which ends every process of a turn (DESIGN section 5, "effects stop")."""


class Guard:
    """Ends the processes of commands when the worker dies, their turn ends, or its lease is not renewed.

    A turn may have effects only while its lease is known to be valid: call ``renewed`` as soon as the turn is
    claimed and after every acknowledged heartbeat. Without a valid lease ``bash``, ``glob``, ``grep`` and the
    replace of a file are refused with TurnFenced.
    """

    async def start(self) -> None:
        """Start the guard process; returns when it is ready. Idempotent."""
        raise NotImplementedError

    async def close(self) -> None:
        """End every process of every turn, then the guard. Returns when all are gone. Idempotent."""
        raise NotImplementedError

    def renewed(self, turn_id: str, seconds_valid: float) -> None:
        """The lease of ``turn_id`` was acknowledged: its effects may go on for ``seconds_valid`` more.

        Counted on the monotonic clock from now. Callable from any thread.
        """
        raise NotImplementedError

    def require(self, turn_id: str) -> None:
        """Raise TurnFenced unless the lease of ``turn_id`` is known to be valid now."""
        raise NotImplementedError
