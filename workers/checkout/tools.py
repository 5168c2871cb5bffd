"""The local tools of a worker: one object per process, one call of ``run`` per tool call."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pydantic import ValidationError

from team.model.claims import PendingCall
from team.model.errors import InvalidArgument, TeamError, ToolUnknown, TurnFenced
from team.model.events import Outcome, first_fault
from team.model.slices import FileSlice
from team.model.tools import (
    LOCAL_PARAMETERS,
    BashParameters,
    EditParameters,
    GlobParameters,
    GrepParameters,
    ReadParameters,
    WriteParameters,
)
from team.model.values import Parameters, clean_text, decode_json
from workers.checkout.bash import Bash, BashCall, DirectoryGoneError
from workers.checkout.errors import CallInterruptedError, FileFaultError, OutcomeUnknownError
from workers.checkout.files import AbsentError, Done, FileCall, Files
from workers.checkout.guard import Guard
from workers.checkout.locks import PathLocks
from workers.checkout.paths import open_workspace
from workers.checkout.sandbox import Sandbox
from workers.checkout.search import Search

_REPLACING: Final = frozenset({"write", "edit"})


@dataclass(frozen=True)
class LocalResult:
    """What a local call returned.

    ``observed`` is what the Session now knows of files, paths relative to the workspace root. ``cwd`` is set when
    the call moved the Session's directory: an absolute path inside the workspace.
    """

    outcome: Outcome
    content: str
    observed: tuple[FileSlice, ...] = ()
    cwd: str | None = None


class CallContext(Protocol):
    """One call, as the step loop knows it."""

    @property
    def session_id(self) -> str: ...
    @property
    def execution(self) -> str:
        """Names the claim that the call belongs to, for the guard; ``end_turn`` takes the same name."""
        ...

    @property
    def call_id(self) -> str: ...
    @property
    def cwd(self) -> str: ...
    @property
    def files(self) -> Mapping[str, FileSlice]:
        """What the Session has seen so far, by path relative to the workspace root."""
        ...

    async def intent(self, path: str, before: str | None, after: str) -> None:
        """Log that ``path`` is about to be replaced. Raises when the turn is fenced; then nothing is replaced."""
        ...


class _Intents:
    """Passes intents on, and remembers what they raised: that is no fault of the call."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self.failure: BaseException | None = None

    async def log(self, path: str, before: str | None, after: str) -> None:
        try:
            await self._context.intent(path, before, after)
        except BaseException as error:
            self.failure = error
            raise


class LocalTools:
    """``read``, ``write``, ``edit``, ``glob``, ``grep`` and ``bash`` on one shared checkout.

    Args:
        root: The workspace root; nothing outside it is read or written by the file tools.
        output_bytes: UTF-8 bytes of output that a model is shown of one call.
        guard: Started by the caller, closed by the caller.
        sandbox: Confines commands (``find_sandbox``); closed by the caller.

    Raises:
        ConfigurationInvalid: ``root`` is not a directory, or ripgrep is missing.
    """

    def __init__(self, root: Path, *, output_bytes: int, guard: Guard, sandbox: Sandbox | None = None) -> None:
        workspace = open_workspace(root)
        self._guard = guard
        self._files = Files(workspace, PathLocks(workspace), output_bytes)
        self._search = Search(workspace, guard, output_bytes)
        self._bash = Bash(workspace, guard, output_bytes, sandbox)

    async def run(self, name: str, arguments: str, context: CallContext) -> LocalResult:
        """Run one call to its end.

        A fault of the call (bad arguments, a missing file, a stale version) is an error result, not an exception.
        Raises TurnFenced when the turn's lease is not valid, and whatever ``context.intent`` raises. Cancelling
        ends the call's processes before CancelledError goes on; a replace is then either done or not begun.
        """
        intents = _Intents(context)
        try:
            return await self._run(_parameters(name, arguments), context, intents)
        except AbsentError as absent:
            return _error(absent.error, observed=(FileSlice(path=absent.path, version=None),))
        except DirectoryGoneError as gone:
            return _error(gone.error, cwd=gone.nearest)
        except TurnFenced:
            raise
        except TeamError as error:
            if error is intents.failure:
                raise
            return _error(error)
        except OSError as error:
            # Such as no descriptor left: the operating system's, not the call's fault, but the turn goes on.
            if error is intents.failure:
                raise
            return _error(FileFaultError(f"{name} failed: {error.strerror or error}. Try again."))

    async def _run(self, parameters: Parameters, context: CallContext, intents: _Intents) -> LocalResult:
        execution, cwd = context.execution, context.cwd
        match parameters:
            case ReadParameters():
                return _done(await self._files.read(parameters, self._file_call(context, intents)))
            case WriteParameters():
                return _done(await self._files.write(parameters, self._file_call(context, intents)))
            case EditParameters():
                return _done(await self._files.edit(parameters, self._file_call(context, intents)))
            case GlobParameters():
                return LocalResult("ok", clean_text(await self._search.glob(parameters, cwd, execution)))
            case GrepParameters():
                return LocalResult("ok", clean_text(await self._search.grep(parameters, cwd, execution)))
            case BashParameters():
                call = BashCall(context.session_id, cwd, execution, context.call_id)
                ran = await self._bash.run(parameters, call)
                return LocalResult("ok", clean_text(ran.text), cwd=ran.cwd)
            case _:
                raise ToolUnknown(f"there is no tool with the parameters {type(parameters).__name__}")

    def _file_call(self, context: CallContext, intents: _Intents) -> FileCall:
        return FileCall(
            cwd=context.cwd,
            versions={path: item.version for path, item in context.files.items()},
            intent=intents.log,
            require_lease=lambda: self._guard.require(context.execution),
        )

    async def end_turn(self, turn_id: str) -> None:
        """End every process of the turn and forget its lease; returns when they are gone. Idempotent."""
        self._bash.end_turn(turn_id)
        await self._guard.end_turn(turn_id)

    def recover(self, call: PendingCall) -> LocalResult:
        """The result of a call that a lost worker left without one; the call is not run again.

        ``write`` and ``edit`` change a file only after a logged intent, so the file's hash tells what happened.
        Reads the file; call it off the event loop.
        """
        if call.name == "bash":
            return _error(
                OutcomeUnknownError(
                    "The worker of this command was cut off. It may have run in part, or to its end; its output is "
                    "lost and its processes were ended. Look at its effects before you run it again."
                ),
                outcome="unknown",
            )
        if call.name not in _REPLACING or call.intent_path is None:
            return _error(
                CallInterruptedError("The worker of this call was cut off. The call changed nothing: call it again.")
            )
        return self._judge(call, call.intent_path)

    def _judge(self, call: PendingCall, path: str) -> LocalResult:
        try:
            found = self._files.recover(call)
        except TeamError as error:
            return _error(
                OutcomeUnknownError(
                    f"The worker of this call was cut off, and {path} cannot be looked at ({error.message}). "
                    "Read it before you go on."
                ),
                outcome="unknown",
            )
        version = found.version if found else None
        if version == call.intent_after:
            return LocalResult(
                "ok",
                clean_text(f"The worker of this call was cut off after the change: {path} has its new content."),
                observed=(FileSlice(path=path, version=version),),
            )
        if version == call.intent_before:
            return _error(
                CallInterruptedError(
                    f"The worker of this call was cut off before the change: {path} is as it was. Call it again."
                ),
                observed=(FileSlice(path=path, version=version),),
            )
        return _error(
            OutcomeUnknownError(
                f"The worker of this call was cut off, and {path} now holds neither what it held before nor what "
                "this call meant to put there. Read it to see whether your change is in it."
            ),
            outcome="unknown",
        )


def _parameters(name: str, arguments: str) -> Parameters:
    shape = LOCAL_PARAMETERS.get(name)
    if shape is None:
        raise ToolUnknown(f"there is no tool {name!r} here; there are {', '.join(LOCAL_PARAMETERS)}")
    try:
        return shape.model_validate(decode_json(arguments))
    except ValidationError as error:
        raise InvalidArgument(f"{name}: {first_fault(error)}") from error
    except ValueError as error:
        raise InvalidArgument(f"{name}: the arguments are not valid JSON ({error})") from error


def _done(done: Done) -> LocalResult:
    return LocalResult("ok", clean_text(done.text), observed=(done.observed,))


def _error(
    error: TeamError,
    *,
    outcome: Outcome = "error",
    observed: tuple[FileSlice, ...] = (),
    cwd: str | None = None,
) -> LocalResult:
    body = {"error": {"code": error.code, "message": clean_text(error.message)}}
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return LocalResult(outcome, text, observed=observed, cwd=cwd)
