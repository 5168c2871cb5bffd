"""Bringing workflows on: woken by the commits of this coordinator, and by a sweep for what another one left."""

import threading
from typing import Final

import structlog

from team.log.transaction import Effects
from team.log.workflows import WorkflowKey
from team.model.errors import StoreUnavailable
from team.service.scripts import PROCESSES, Scripts
from team.service.workflows import WorkflowService

_log = structlog.get_logger(__name__)

SWEEP_SECONDS: Final = 1.0


class WorkflowRunner:
    """A few threads that advance due workflows. Several coordinators may run them at once."""

    def __init__(self, workflows: WorkflowService, scripts: Scripts) -> None:
        self._workflows, self._scripts = workflows, scripts
        self._stopping = False
        self._woken = 0
        self._condition = threading.Condition()
        self._busy = set[WorkflowKey]()
        self._threads = [
            threading.Thread(target=self._run, name=f"workflow-{number}", daemon=True) for number in range(PROCESSES)
        ]

    def __call__(self, effects: Effects) -> None:
        """Take the effects of a committed transaction; returns at once."""
        if effects.workflows:
            with self._condition:
                self._woken += 1
                self._condition.notify_all()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads behind what they run now, and the sandbox's processes."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(timeout=5)
        self._scripts.close()

    def advance_due(self) -> int:
        """Advance what is due and no thread here has in hand; returns how many were run."""
        ran = 0
        for key in self._workflows.due():
            with self._condition:
                if self._stopping or key in self._busy:
                    continue
                self._busy.add(key)
            try:
                ran += self._workflows.advance(key)
            except StoreUnavailable:
                raise
            except Exception:
                _log.exception("workflow not advanced", turn=key.turn_id)
            finally:
                with self._condition:
                    self._busy.discard(key)
        return ran

    def _run(self) -> None:
        seen, reported = 0, False
        while True:
            with self._condition:
                self._condition.wait_for(lambda seen=seen: self._stopping or self._woken != seen, SWEEP_SECONDS)
                if self._stopping:
                    return
                seen = self._woken
            try:
                self.advance_due()
                reported = False
            except StoreUnavailable as error:
                if not reported:
                    _log.warning("workflows cannot be advanced", error=error.message)
                reported = True
            except Exception:
                _log.exception("workflows not advanced")
