"""The embedded stack: a broker, a coordinator and workers as child processes that one thread supervises."""

import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from pydantic import SecretStr

import team
from config.settings import Settings
from team.cli.broker import EmbeddedBroker, free_port
from team.cli.children import Child, ChildSpec
from team.cli.faults import StackFailed
from team.cli.lines import plain
from team.cli.places import Owner, StackRecord, prepare, publish, remember_workspace, stack_lock, withdraw
from team.cli.tokens import is_provider_key, stored_token

_READY_SECONDS: Final = 30.0
_PERIOD_SECONDS: Final = 0.05
_STOP_MARGIN_SECONDS: Final = 5.0
_MISCONFIGURED: Final = 2
_TRIES: Final = 3


@dataclass(frozen=True)
class StackPlan:
    """What to run. ``port`` None takes a free one; ``keys`` go to workers and to nothing else."""

    settings: Settings
    data_dir: Path
    workspace: Path
    owner: Owner
    workers: int
    port: int | None = None
    keys: Mapping[str, str] = field(default_factory=dict[str, str])


class Stack:
    """Runs a plan until ``stop``. A child that exits is started again, with a back-off.

    Every child dies with this process, however it ends. Starting, restarting and stopping happen in one thread of
    its own; the methods here may be called from any other.
    """

    def __init__(self, plan: StackPlan, announce: Callable[[str], None]) -> None:
        self.plan = plan
        self._announce = announce
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._killing = threading.Event()
        self._record: StackRecord | None = None
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="stack", daemon=False)
        self._broker: EmbeddedBroker | None = None
        self._settings = plan.settings
        self._valkey: Child | None = None
        self._coordinator: Child | None = None
        self._workers: list[Child] = []

    def start(self) -> StackRecord:
        """Start everything and return once the coordinator answers; workers may still be starting.

        Raises:
            StackBusy: Another stack runs on the data directory.
            StackFailed: A process did not start; its last words are in the text.
        """
        prepare(self.plan.data_dir)
        self._thread.start()
        try:
            self._changed.wait()
            self.check()
        except BaseException:
            self.stop()
            raise
        return cast("StackRecord", self._record)

    def check(self) -> None:
        """Raise the failure after which restarting makes no sense, if there is one."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop in order: workers hand their turns back, then the coordinator, then the broker. Idempotent."""
        self._stopping.set()
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt:
                # Somebody who interrupts a stop is in haste; leaving now would only leave the stop to itself.
                self.escalate()

    def escalate(self) -> None:
        """Kill what an orderly stop still waits for."""
        self._killing.set()

    # The supervising thread.

    def _run(self) -> None:
        try:
            with stack_lock(self.plan.data_dir):
                try:
                    self._bring_up()
                    self._changed.set()
                    self._supervise()
                finally:
                    self._bring_down()
        except Exception as error:  # noqa: BLE001  # raised again by check, in the thread that uses the stack
            self._failure = error
        finally:
            self._changed.set()

    def _bring_up(self) -> None:
        plan, data_dir = self.plan, self.plan.data_dir
        broker_url = plan.settings.broker_url
        if broker_url is None:
            self._broker = EmbeddedBroker.allot()
            broker_url = self._broker.url
            self._valkey = Child(self._broker.child(data_dir, data_dir / "logs" / "valkey.log"))
            self._valkey.start()
            self._await(self._valkey, self._broker.answers, "the embedded broker")
        port = plan.port or free_port()
        self._settings = plan.settings.model_copy(
            update={
                "data_dir": data_dir,
                "workspace_root": plan.workspace,
                "broker_url": broker_url,
                "host": "127.0.0.1",
                "port": port,
                "coordinator_url": f"http://127.0.0.1:{port}",
                # Its own processes talk on loopback, to an address that no certificate names.
                "tls_cert": None,
                "tls_key": None,
                "operator_token": plan.settings.operator_token or SecretStr(stored_token(data_dir, "operator")),
                "worker_token": plan.settings.worker_token or SecretStr(stored_token(data_dir, "worker")),
            }
        )
        remember_workspace(data_dir, plan.workspace)
        self._coordinator = Child(self._module("coordinator", "team.api", worker=False))
        self._coordinator.start()
        for number in range(1, plan.workers + 1):
            worker = Child(self._module(f"worker-{number}", "workers", worker=True))
            self._workers.append(worker)
            worker.start()
        self._await(self._coordinator, self._coordinator_answers, "the coordinator")
        self._publish()

    def _await(self, child: Child, ready: Callable[[], bool], what: str) -> None:
        """Wait until a child answers; one that refuses its configuration, or fails again and again, fails the stack."""
        end = time.monotonic() + _READY_SECONDS
        while not self._stopping.is_set():
            if child.alive and ready():
                return
            if not child.alive and (child.exit_code == _MISCONFIGURED or child.restarts >= _TRIES):
                raise StackFailed(self._epitaph(child, what))
            if time.monotonic() > end:
                raise StackFailed(f"{what} did not answer within {_READY_SECONDS:g} s; look into {child.spec.log}.")
            child.revive()
            self._stopping.wait(_PERIOD_SECONDS)

    def _epitaph(self, child: Child, what: str) -> str:
        words = child.last_words().removeprefix("team: ").removeprefix("worker: ")
        if words:
            return f"{what} could not start: {words}"
        return f"{what} ended with status {child.exit_code} and said nothing; look into {child.spec.log}."

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            for child in self._children():
                self._revive(child)
            self._stopping.wait(_PERIOD_SECONDS)

    def _revive(self, child: Child) -> None:
        code = child.exit_code
        if code == _MISCONFIGURED and child in self._workers:
            # Its settings will not change. A coordinator says the same of a database that is away for a while.
            raise StackFailed(self._epitaph(child, child.spec.name))
        words = "" if code is None else child.last_words()
        if child.revive():
            how = f"signal {-code}" if code is not None and code < 0 else f"status {code}: {plain(words, 160)}"
            self._announce(f"{child.spec.name} ended ({how}) and was started again")
            self._publish()

    def _bring_down(self) -> None:
        withdraw(self.plan.data_dir)
        grace = self._settings.drain_seconds + _STOP_MARGIN_SECONDS
        self._end(self._workers, grace, attended=[self._valkey, self._coordinator])
        self._end([self._coordinator], _STOP_MARGIN_SECONDS, attended=[self._valkey])
        self._end([self._valkey], _STOP_MARGIN_SECONDS, attended=[])

    def _end(self, group: "list[Child | None] | list[Child]", grace: float, *, attended: "list[Child | None]") -> None:
        """Stop children together; what they need meanwhile is kept running."""
        children = [child for child in group if child is not None]
        for child in children:
            child.signal(signal.SIGTERM)
        end = time.monotonic() + grace
        while any(child.alive for child in children):
            if self._killing.is_set() or time.monotonic() > end:
                for child in children:
                    child.signal(signal.SIGKILL)
            for child in attended:
                if child is not None and not self._killing.is_set():
                    child.revive()
            time.sleep(_PERIOD_SECONDS)

    def _children(self) -> list[Child]:
        return [child for child in (self._valkey, self._coordinator, *self._workers) if child is not None]

    def _coordinator_answers(self) -> bool:
        parts = urlsplit(self._settings.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _publish(self) -> None:
        token = self._settings.operator_token
        self._record = StackRecord(
            pid=os.getpid(),
            owner=self.plan.owner,
            url=self._settings.url,
            token=token.get_secret_value() if token is not None else "",
            workspace=str(self.plan.workspace),
            children={child.spec.name: child.pid for child in self._children() if child.pid is not None},
        )
        publish(self.plan.data_dir, self._record)

    def _module(self, name: str, module: str, *, worker: bool) -> ChildSpec:
        updates: dict[str, object] = {"worker_name": name} if worker else {}
        return ChildSpec(
            name=name,
            command=(sys.executable, "-m", module),
            environment=child_environment(self._settings.model_copy(update=updates), os.environ, worker=worker),
            directory=self.plan.data_dir,
            log=self.plan.data_dir / "logs" / f"{name}.log",
            keys=self.plan.keys if worker else {},
        )


def child_environment(settings: Settings, inherited: Mapping[str, str], *, worker: bool) -> dict[str, str]:
    """The environment of a coordinator or a worker: its settings, and what this process has besides keys.

    Every setting that was set anywhere (option, variable, file) is passed on by name, so that a child reads the same
    values whatever directory it runs in. A worker gets neither the database nor the operator's token.
    """
    environment = {
        name: value
        for name, value in inherited.items()
        if not is_provider_key(name) and not name.upper().startswith("TEAM_")
    }
    hidden = {"provider_keys_file", "invite_token", *(("database_url", "operator_token") if worker else ())}
    for name in settings.model_fields_set - hidden:
        value: Any = getattr(settings, name)
        if value is None:
            continue
        if isinstance(value, SecretStr):
            text = value.get_secret_value()
        elif isinstance(value, str | Path):
            text = str(value)
        else:
            text = json.dumps(value)
        environment[f"TEAM_{name.upper()}"] = text
    # The reason of a failure has to be the last line of the log, not the first of a late flush.
    environment["PYTHONUNBUFFERED"] = "1"
    packages = str(Path(team.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (packages, inherited.get("PYTHONPATH"))))
    return environment
