"""Housekeeping: runtime rows are deleted by age, a few at a time."""

from collections.abc import Mapping
from typing import Final

from team.log.retention import Records, forget
from team.service.store import Store

_DAY: Final = 86_400.0

AGES_SECONDS: Final[Mapping[Records, float]] = {
    # No client repeats a request, and no worker a write, after so long.
    "requests": _DAY,
    "writes": _DAY,
    # Views name the workers of a Session; nothing decides by them.
    "claims": 30 * _DAY,
    "workers": _DAY,
}
BATCH: Final = 500
BATCHES: Final = 40
"""Of one kind in one pass: what is left waits for the next one."""


class Housekeeping:
    """Deletes what nobody can ask for any more. Idempotent; safe with several coordinators."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tidy(self, ages: Mapping[Records, float] = AGES_SECONDS) -> int:
        """One pass over all kinds; returns how many rows it deleted. Raises StoreUnavailable.

        Each batch is a transaction of its own, so that writers wait for one batch at most.
        """
        return sum(self._forget(records, age) for records, age in ages.items())

    def _forget(self, records: Records, age_seconds: float) -> int:
        forgotten = 0
        for _ in range(BATCHES):
            count = self._store.writing(lambda tx: forget(tx.connection, records, tx.now - age_seconds, BATCH))
            forgotten += count
            if count < BATCH:
                break
        return forgotten
