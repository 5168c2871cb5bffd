"""How many of a worker's slots are taken, for threads."""

import threading
from collections.abc import Generator
from contextlib import contextmanager


class Slots:
    """Counts taken slots. ``saturations`` grows each time the last free one is taken."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.saturations = 0
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        return self.total - self._taken

    @contextmanager
    def taken(self) -> Generator[None]:
        with self._lock:
            self._taken += 1
            if self._taken >= self.total:
                self.saturations += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1
