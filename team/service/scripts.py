"""Scripts of workflows: one run between two waits, in the sandbox (a pool of ``pydantic-monty`` processes).

A run is a function of the script and of the answers so far: clock, randomness and the order of answers are fixed, so a
script that another version of the sandbox paused is run again from its beginning and comes to the same place.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, NoReturn, cast

import pydantic_monty
from pydantic_monty import (
    FunctionSnapshot,
    FutureSnapshot,
    Monty,
    MontyComplete,
    MontyConversionError,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySyntaxError,
    NameLookupSnapshot,
    OSPolicy,
    ResourceLimits,
    SourceRange,
    SyncSnapshot,
)

from team.model.values import Json, clean_text, hygiene_fault
from team.rules.children import MAX_LABEL_CHARACTERS
from team.rules.schemas import schema_fault

ENGINE: Final = f"pydantic-monty {pydantic_monty.__version__}"
PROCESSES: Final = 2
"""Scripts that one coordinator runs at once."""

_PRELUDE: Final = """
import asyncio


async def parallel(agents):
    return list(await asyncio.gather(*list(agents)))
"""
_FILE: Final = "<python-input-1>"
"""How the sandbox calls the script: the prelude is the input before it."""

_FUNCTIONS: Final = ("agent", "phase", "log")
_OPTIONS: Final = ("label", "schema", "tools")
_NOTE_CHARACTERS: Final = 2_000
_GRACE_SECONDS: Final = 5.0
_CLOCK: Final = datetime(2000, 1, 1, tzinfo=UTC)


class SandboxLost(Exception):  # noqa: N818 -- it says what happened
    """The sandbox's process died; nothing is known of the run, which may be tried again."""


@dataclass(frozen=True)
class Script:
    """What is run. ``seed`` fixes its random numbers."""

    text: str
    args: Json
    seed: str


@dataclass(frozen=True)
class Bounds:
    """Limits of one workflow; ``tools`` are those that its agents may be left."""

    agents: int
    notes: int
    run_seconds: float
    memory_bytes: int
    prompt_bytes: int
    tools: tuple[str, ...]


@dataclass(frozen=True)
class Ask:
    """One call of ``agent``."""

    label: str
    prompt: str
    schema: dict[str, Any] | None = None
    tools: tuple[str, ...] | None = None
    phase: str | None = None


@dataclass(frozen=True)
class Note:
    """One progress record."""

    kind: Literal["phase", "log"]
    text: str


@dataclass(frozen=True)
class Pause:
    """A script that waits for agents. ``pending`` maps calls of the snapshot to items."""

    snapshot: bytes
    pending: Mapping[int, int]
    engine: str = ENGINE


@dataclass(frozen=True)
class Returned:
    """The script's value as JSON text."""

    value: str


@dataclass(frozen=True)
class Failed:
    """Why the script cannot go on, with the place in it."""

    message: str


@dataclass(frozen=True)
class Past:
    """What the log says of the run before: every ask, how many notes, the phase, and the answers in their batches."""

    asks: Sequence[Ask] = ()
    notes: int = 0
    phase: str | None = None
    batches: Sequence[Mapping[int, Json]] = ()


@dataclass(frozen=True)
class Outcome:
    """What a run adds: ``records`` are notes and asks in their order."""

    records: tuple[Note | Ask, ...]
    end: Pause | Returned | Failed


class Scripts:
    """Runs scripts. Safe to share between threads; the sandbox's processes start with the first script."""

    def __init__(self) -> None:
        self._pool: Monty | None = None
        self._lock = threading.Lock()

    def run(self, script: Script, bounds: Bounds, past: Past, pause: Pause | None, delivered: int) -> Outcome:
        """Run a script to its next wait or its end.

        With a pause of this engine the run goes on behind batch ``delivered``; otherwise it begins anew and comes
        through all that is ``past``. Raises SandboxLost.
        """
        resumed = pause is not None and pause.engine == ENGINE
        run = _Run(script, bounds, past, replaying=not resumed)
        policy = OSPolicy(datetime=_CLOCK, sleep="call_host", random_start={"seed": script.seed})
        limits = ResourceLimits(
            max_turn_duration_secs=bounds.run_seconds,
            max_feed_duration_secs=bounds.run_seconds * 10,
            max_memory=bounds.memory_bytes,
            max_suspensions=4 * (bounds.agents + bounds.notes) + 100,
        )
        pool = self._started(bounds.run_seconds + _GRACE_SECONDS)
        try:
            with pool.checkout(limits=limits, os_policy=policy) as session:
                if pause is not None and resumed:
                    paused = session.load_snapshot(pause.snapshot, print_callback=run.printed)
                    run.pending = dict(pause.pending)
                    run.answer(paused, past.batches[delivered:])
                else:
                    session.feed_run(_PRELUDE)
                    first = session.feed_start(script.text, inputs={"args": script.args}, print_callback=run.printed)
                    run.answer(run.drive(first), past.batches)
        except _Ended as ended:
            return Outcome(tuple(run.records), ended.end)
        except MontyCrashedError as error:
            raise SandboxLost(str(error)) from error
        except (MontyError, MontyConversionError) as error:
            return Outcome(tuple(run.records), Failed(run.told(error)))
        raise AssertionError("a run has an end")

    def close(self) -> None:
        """End the sandbox's processes."""
        with self._lock:
            if self._pool is not None:
                self._pool.__exit__(None, None, None)
            self._pool = None

    def _started(self, patience_seconds: float) -> Monty:
        with self._lock:
            if self._pool is None:
                pool = Monty(min_processes=0, max_processes=PROCESSES, request_timeout=patience_seconds)
                self._pool = pool.__enter__()
            return self._pool


class _Ended(Exception):  # noqa: N818 -- it is no error: it leaves the sandbox's session
    def __init__(self, end: Pause | Returned | Failed) -> None:
        self.end = end


@dataclass
class _Run:
    """One run: what the script asks of its host, in order."""

    script: Script
    bounds: Bounds
    past: Past
    replaying: bool
    records: list[Note | Ask] = field(default_factory=list[Note | Ask])
    pending: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self._asked = 0 if self.replaying else len(self.past.asks)
        self._noted = 0 if self.replaying else self.past.notes
        self._phase = None if self.replaying else self.past.phase
        self._output = ""
        self._lines: dict[int, int] = {}

    def answer(self, paused: SyncSnapshot, batches: Sequence[Mapping[int, Json]]) -> NoReturn:
        """Give the batches in order to the paused script, then leave it where it waits."""
        for batch in batches:
            assert isinstance(paused, FutureSnapshot)
            calls = {item: call for call, item in self.pending.items()}
            settled = {calls[item]: {"return_value": value} for item, value in batch.items()}
            for call in settled:
                del self.pending[call]
            paused = self.drive(paused.resume(cast("Any", settled)))
        assert isinstance(paused, FutureSnapshot)
        self._require_same_path()
        raise _Ended(Pause(paused.dump(), dict(self.pending)))

    def drive(self, snapshot: SyncSnapshot) -> FutureSnapshot:
        """Answer what the script calls until it waits for agents. Raises _Ended when it does not any more."""
        while not isinstance(snapshot, FutureSnapshot):
            self._flush()
            if isinstance(snapshot, MontyComplete):
                self._complete(snapshot.output)
            elif isinstance(snapshot, NameLookupSnapshot):
                snapshot = self._look_up(snapshot)
            else:
                snapshot = self._call(snapshot)
        self._flush()
        return snapshot

    def printed(self, _stream: str, text: str) -> None:
        """Output of the script; it is flushed before the script calls its host."""
        if len(self._output) <= 64 * _NOTE_CHARACTERS:
            self._output += text

    def told(self, error: Exception) -> str:
        """An error of the script in words, with the line where it arose."""
        frames = error.traceback() if isinstance(error, MontyRuntimeError | MontySyntaxError) else []
        lines = [frame.line for frame in frames if frame.filename == _FILE]
        kind = "cannot be parsed" if isinstance(error, MontySyntaxError) else "failed"
        where = f", line {lines[-1]}," if lines else ""
        return f"The script{where} {kind}: {clean_text(str(error))[:1_000]}"

    def _look_up(self, snapshot: NameLookupSnapshot) -> SyncSnapshot:
        name = snapshot.variable_name
        if snapshot.object_id is not None or name not in _FUNCTIONS:
            return snapshot.resume()
        return snapshot.resume(value=_named(name))

    def _call(self, snapshot: FunctionSnapshot) -> SyncSnapshot:
        place, name = snapshot.position, snapshot.function_name
        if snapshot.is_os_function and name == "import":
            self._misuse(place, f"there is no module {str(snapshot.args[:1])[1:-2]} in the sandbox")
        if snapshot.is_os_function:
            self._misuse(place, f"{name} is not there: a script has no files, environment, network or sleep")
        if name == "agent":
            self._record_ask(self._asked_for(snapshot), place)
            self._lines[snapshot.call_id] = self._line(place) or 0
            self.pending[snapshot.call_id] = self._asked - 1
            return snapshot.resume({"future": ...})
        if name not in _FUNCTIONS:
            known = "agent, parallel, phase, log, args"
            self._misuse(place, f"the name {name!r} is not defined; beside Python there are {known}")
        if len(snapshot.args) != 1 or snapshot.kwargs:
            self._misuse(place, f"{name}() takes one text")
        kind = "phase" if name == "phase" else "log"
        self._record_note(Note(kind, _line_of_text(snapshot.args[0])), place)
        return snapshot.resume({"return_value": None})

    def _asked_for(self, snapshot: FunctionSnapshot) -> Ask:
        """The checked arguments of one call of ``agent``."""
        place, options = snapshot.position, snapshot.kwargs

        def refuse(fault: str) -> NoReturn:
            self._misuse(place, f"agent(): {fault}")

        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            refuse(f"there is no option {unknown[0]!r}; there are {', '.join(_OPTIONS)}")
        if len(snapshot.args) != 1:
            refuse("it takes one prompt, and options by name")
        prompt = snapshot.args[0]
        if not isinstance(prompt, str) or not prompt.strip():
            refuse("the prompt must be a text that is not empty")
        prompt = clean_text(prompt)
        size = len(prompt.encode())
        if size > self.bounds.prompt_bytes:
            refuse(f"the prompt has {size} bytes; the limit is {self.bounds.prompt_bytes}. Put details into a file")
        label = options.get("label") or f"agent {self._asked + 1}"
        if (
            not isinstance(label, str)
            or not label.strip()
            or len(label) > MAX_LABEL_CHARACTERS
            or not label.isprintable()
        ):
            refuse(f"the label must be one line of at most {MAX_LABEL_CHARACTERS} characters")
        schema = options.get("schema")
        fault = None if schema is None else schema_fault(schema)
        if fault is not None:
            refuse(f"the schema cannot be used: {fault}")
        return Ask(
            label=label,
            prompt=prompt,
            schema=None if schema is None else json.loads(json.dumps(schema)),
            tools=self._tools(options.get("tools"), refuse),
            phase=self._phase,
        )

    def _tools(self, tools: object, refuse: Callable[[str], NoReturn]) -> tuple[str, ...] | None:
        if tools is None:
            return None
        if not isinstance(tools, list | tuple):
            refuse("tools must be a list of names")
        names = cast("Sequence[object]", tools)
        unknown = [name for name in names if name not in self.bounds.tools]
        if unknown:
            refuse(f"there is no tool {str(unknown[0])[:80]!r}; there are {', '.join(self.bounds.tools)}")
        return tuple(str(name) for name in names)

    def _record_ask(self, ask: Ask, place: SourceRange) -> None:
        if self._asked < len(self.past.asks):
            if ask != self.past.asks[self._asked]:
                self._diverged()
        elif self._asked >= self.bounds.agents:
            self._misuse(place, f"this workflow has asked for {self._asked} agents, its limit")
        else:
            self.records.append(ask)
        self._asked += 1

    def _record_note(self, note: Note, place: SourceRange | None) -> None:
        if note.kind == "phase":
            self._phase = note.text
        if self._noted >= self.past.notes:
            if self._noted >= self.bounds.notes:
                self._misuse(place, f"this workflow has written {self._noted} progress records, its limit")
            self.records.append(note)
        self._noted += 1

    def _flush(self) -> None:
        lines, self._output = self._output.splitlines(), ""
        for line in lines:
            if line.strip():
                self._record_note(Note("log", _line_of_text(line)), None)

    def _complete(self, output: object) -> NoReturn:
        self._require_same_path()
        if self.pending:
            call = min(self.pending)
            where = f", line {self._lines[call]}," if self._lines.get(call) else ""
            self._fail(f"The script{where} called agent() and never awaited it; write await agent(...).")
        try:
            # Through JSON: what the model gets must be what the log can hold.
            value = json.dumps(output, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            fault = hygiene_fault(json.loads(value))
        except (TypeError, ValueError, RecursionError) as error:
            fault = str(error)
            value = ""
        if fault is not None:
            self._fail(f"The script's value cannot be returned as JSON: {clean_text(fault)[:300]}.")
        raise _Ended(Returned(value))

    def _require_same_path(self) -> None:
        if self._asked < len(self.past.asks):
            self._diverged()

    def _diverged(self) -> NoReturn:
        self._fail(
            f"The script cannot be continued: run again from its beginning on {ENGINE} it asked for other agents than "
            "before."
        )

    def _misuse(self, place: SourceRange | None, fault: str) -> NoReturn:
        line = None if place is None else self._line(place)
        where = "" if line is None else f", line {line}"
        self._fail(f"The script{where}: {clean_text(fault)}.")

    def _fail(self, message: str) -> NoReturn:
        raise _Ended(Failed(message))

    def _line(self, place: SourceRange) -> int | None:
        if place.filename != _FILE:
            return None
        return self.script.text.encode()[: place.start].count(b"\n") + 1


def _named(name: str) -> Callable[[], None]:
    """A function that the sandbox takes for the host's one of this name."""

    def called() -> None: ...

    called.__name__ = name
    return called


def _line_of_text(value: object) -> str:
    """A progress record: one line, cut."""
    text = " ".join(clean_text(str(value)).split())
    return text if len(text) <= _NOTE_CHARACTERS else text[:_NOTE_CHARACTERS] + " [cut]"
