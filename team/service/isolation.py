"""Work on many Sessions in which the fault of one does not stop the others."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from team.model.errors import StoreUnavailable

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


def each(items: Iterable[_T], action: Callable[[_T], int], failed: str) -> int:
    """Run ``action`` on every item; the sum of what it returns.

    A fault of one item is logged under ``failed`` and the next one is taken. Raises StoreUnavailable at once: it is
    no fault of an item.
    """
    done = 0
    for item in items:
        try:
            done += action(item)
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001 -- also a defect that one item brings to light must not stop the rest
            _log.exception(failed, **_ids(item))
    return done


def _ids(item: object) -> dict[str, str]:
    """The ids that an item has, whatever kind of row it is."""
    found = {name: getattr(item, f"{name}_id", None) for name in ("team", "session", "turn")}
    return {name: value for name, value in found.items() if isinstance(value, str)}
