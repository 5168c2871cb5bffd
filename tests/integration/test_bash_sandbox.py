"""D08, B01, B02, B04 under the sandbox: a command reaches nothing but the workspace and its own temporary files."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from team.model.errors import ConfigurationInvalid
from tests.support.checkout import guard_process, guarded, run, workspace_processes
from tests.support.processes import MARKER
from tests.support.waiting import wait_until, wait_until_async
from workers.checkout import Guard, Places, find_sandbox, open_workspace
from workers.checkout.scratch import PREFIX

pytestmark = pytest.mark.usefixtures("confinement")

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def root() -> Iterator[Path]:
    """A workspace outside of /tmp, which commands see a private one of."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="team-sandbox-") as directory:
        path = Path(directory) / "work"
        path.mkdir()
        yield path


@pytest.fixture(params=["root", "user-namespace"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way of confinement that this user has."""
    if request.param == "root":
        if os.geteuid() != 0:
            pytest.skip("only root may confine without a user namespace")
    else:
        monkeypatch.setattr("workers.checkout.sandbox.os.geteuid", lambda: 1000)
    return str(request.param)


def test_d08_a_command_writes_in_the_workspace_and_in_its_own_tmp_alone(root: Path, kind: str) -> None:
    outside = root.parent / "outside"
    outside.write_text("kept\n")

    async def work() -> None:
        async with guarded(root, sandbox="on") as (desk, _):
            text = await desk.bash(
                f"echo in > inside; echo t > /tmp/mine; echo x > {outside}; touch /etc/x /var/tmp/x ~/x /usr/x; "
                "mount -o remount,rw /; unshare -Urm mount -o remount,rw /; echo x > /etc/hostname; true"
            )
            assert text.count("Read-only file system") >= 5, text
            assert (root / "inside").read_text() == "in\n"
            assert outside.read_text() == "kept\n"
            assert not Path("/tmp/mine").exists()
            assert await desk.bash("cat /tmp/mine; cat " + str(outside)) == "t\nkept\n[exit code 0]"
            desk.session_id = "session-2"
            assert await desk.bash("ls -A /tmp; echo $TMPDIR") == "/tmp\n[exit code 0]"

    run(work())


ATTACKS = {
    "pkill by name": "pkill -9 -f .; pkill -9 python; pkill -9 team-guard",
    "everybody": "kill -9 -1",
    "init": "kill -9 1; kill 1",
    "port": "fuser -k {port}/tcp; fuser -k -9 {port}/tcp",
    "tmp": "rm -rf /tmp/* /var/tmp/*",
    "pids": "for pid in {pids}; do kill -9 $pid; kill -STOP $pid; done",
    "proc": "for pid in {pids}; do cat /proc/$pid/environ /proc/$pid/cmdline && echo seen; done",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_d08_an_attack_harms_neither_worker_nor_guard_nor_another_member(root: Path, attack: str) -> None:
    other = root.parent / "other"
    other.mkdir()
    with tempfile.NamedTemporaryFile(prefix="team-kept-") as kept, socket.create_server(("127.0.0.1", 0)) as server:

        async def work() -> None:
            async with guarded(root, sandbox="on") as (desk, guard):
                guard.renewed("turn-2", 60)
                desk.execution = "turn-2"
                neighbour = asyncio.create_task(
                    desk.bash("touch ready; until [ -e go ]; do sleep 0.05; done; cat /tmp/mine || echo 'own tmp'")
                )
                await wait_until_async(lambda: _true((root / "ready").exists()), "the other member's command to run")
                desk.execution, desk.session_id = "turn-1", "session-2"
                pid = guard.pid
                pids = " ".join(str(process) for process in (os.getpid(), pid, psutil.Process(pid).children()[0].pid))
                text = await desk.bash(attack.format(port=server.getsockname()[1], pids=pids) + "; true")
                assert "seen" not in text
                assert guard.pid == pid
                (root / "go").touch()
                assert "own tmp" in await neighbour
                assert await desk.bash("echo on") == "on\n[exit code 0]"
                assert Path(kept.name).exists()
                assert other.exists()

        run(work())


def test_b04_other_processes_and_the_places_of_secrets_are_out_of_sight(root: Path, kind: str) -> None:
    data, keys = root.parent / "data", root.parent / "keys"
    inner = root / "deploy"
    for directory in (data, inner):
        directory.mkdir()
        (directory / "token").write_text("canary-in-a-file")
    keys.write_text("NAME=canary-in-a-file")
    places = Places(hidden=(data, keys, inner, root / "absent"))

    async def work() -> None:
        async with guarded(root, sandbox="on", places=places) as (desk, _):
            text = await desk.bash(
                f"cat {data}/token {keys} {inner}/token; ls -A {data} {inner}; find {root.parent} -type f | xargs cat; "
                "ps -ef | wc -l; ls -d /proc/[0-9]* | wc -l; cat /proc/1/environ | tr '\\0' '\\n'"
            )
            assert "canary-in-a-file" not in text, text
            processes, entries = (int(line) for line in text.splitlines() if line.isdigit())
            assert processes < 9, text
            assert entries < 9, text
            assert "TEAM_GUARD" in text

    run(work())
    assert (inner / "token").read_text() == "canary-in-a-file"


def test_a_command_may_write_where_the_deployment_lets_it(root: Path) -> None:
    cache = root.parent / "cache"
    cache.mkdir()

    async def work() -> None:
        async with guarded(root, sandbox="on", places=Places(writable=(cache, root / "absent"))) as (desk, _):
            assert await desk.bash(f"echo x > {cache}/made") == "[exit code 0]"

    run(work())
    assert (cache / "made").read_text() == "x\n"


def test_f10_a_clean_of_the_checkout_does_not_take_its_locks_and_its_id(root: Path) -> None:
    (root / ".team").mkdir()
    (root / ".team" / "workspace-id").write_text("id\n")

    async def work() -> None:
        async with guarded(root, sandbox="on") as (desk, _):
            text = await desk.bash("git init -q; touch junk; git clean -xfdq; rm -rf .team; ls -A; ls .team")
            assert "workspace-id" in text
            assert "junk" not in text.splitlines()
            assert "[exit code 0]" in text

    run(work())


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("echo out; echo err >&2; exit 3", "out\nerr\n[exit code 3]"),
        ("sleep 300 & echo hi", "hi\n[exit code 0; ended what it left running: sleep]"),
        ("env -i setsid sleep 300 & echo hi", "hi\n[exit code 0; ended what it left running: sleep]"),
        ("echo through > >(cat > copied); true", "[exit code 0]"),
        ("cat; echo 'empty input'", "empty input\n[exit code 0]"),
        ("mkdir -p sub; cd sub", "[exit code 0; your directory is now {root}/sub]"),
        (
            "cd /etc",
            "[exit code 0; the directory you changed to is outside of the workspace; your directory stays {root}]",
        ),
    ],
)
def test_b01_a_confined_command_returns_like_any_other(root: Path, kind: str, command: str, text: str) -> None:
    async def work() -> None:
        async with guarded(root, sandbox="on") as (desk, _):
            assert await desk.bash(command) == text.format(root=root)
            assert workspace_processes(root) == []

    run(work())


def test_b03_confined_output_spills_to_a_file_that_read_shows_and_commands_cannot_change(root: Path) -> None:
    async def work() -> None:
        async with guarded(root, sandbox="on", output_bytes=2000) as (desk, _):
            text = await desk.bash("seq 10000")
            path = next(word for word in text.split() if word.endswith(".txt"))
            assert "9999" in (await desk.run("read", path=path, offset=9999)).content
            assert "Read-only" in await desk.bash(f"echo x > {path}")

    run(work())


DEAF = "trap '' TERM HUP INT; env -i setsid sleep 300 & (trap '' TERM; sleep 300; sleep 300) & touch ready; wait"


@pytest.mark.parametrize("how", ["timeout", "cancel", "end of turn", "close"])
def test_b02_a_confined_tree_ends_whole(root: Path, how: str) -> None:
    async def work() -> None:
        async with guarded(root, sandbox="on") as (desk, guard):
            limit = 1000 if how == "timeout" else 60_000
            task = asyncio.create_task(desk.run("bash", command=DEAF, timeout_ms=limit))
            await wait_until_async(lambda: _true((root / "ready").exists()), "the command to run")
            match how:
                case "timeout":
                    assert "timed out" in (await task).content
                case "cancel":
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                case "end of turn":
                    await desk.tools.end_turn("turn-1")
                    assert workspace_processes(root) == []
                    assert "stopped from outside" in (await task).content
                case _:
                    await guard.close()
                    assert workspace_processes(root) == []
                    assert "stopped from outside" in (await task).content
            assert workspace_processes(root) == []

    run(work())


def test_d08_a_fork_bomb_in_a_namespace_of_its_own_is_ended_and_the_next_command_runs(root: Path) -> None:
    async def work() -> None:
        async with guarded(root, sandbox="on") as (desk, _):
            async with asyncio.timeout(60):
                text = await desk.bash("bomb() { bomb | bomb & }; bomb; sleep 100", timeout_ms=100_000)
            assert "started too many processes" in text or "Resource temporarily unavailable" in text, text
            assert workspace_processes(root) == []
            assert await desk.bash("echo on") == "on\n[exit code 0]"

    run(work())


async def _kill_shepherd(guard: psutil.Process) -> None:
    guard.children()[0].kill()


async def _kill_guard(guard: psutil.Process) -> None:
    guard.kill()


async def _kill_both(guard: psutil.Process) -> None:
    shepherd = guard.children()[0]
    for process in (guard, shepherd):
        process.suspend()
    for process in (guard, shepherd):
        process.kill()


@pytest.mark.parametrize("kill", [_kill_guard, _kill_shepherd, _kill_both])
def test_d08_a_confined_command_ends_with_its_keepers(
    root: Path, kind: str, kill: Callable[[psutil.Process], Awaitable[None]]
) -> None:
    async def work() -> None:
        async with guarded(root, sandbox="on") as (desk, guard):
            # The cleared environment does not help: its namespace has a first process that the next guard finds.
            task = asyncio.create_task(desk.run("bash", command=DEAF))
            await wait_until_async(lambda: _true((root / "ready").exists()), "the command to run")
            await kill(guard_process(guard))
            content = (await task).content
            assert "COMMAND_LOST" in content or "stopped from outside" in content
            await wait_until_async(lambda: _true(workspace_processes(root) == []), "the command to end")
            assert await desk.bash("echo on") == "on\n[exit code 0]"

    run(work())


NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all")
PLAIN = {
    "PATH": os.pathsep.join(("/usr/bin", "/bin", str(Path(sys.executable).parent))),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPATH": os.pathsep.join((str(REPOSITORY), sysconfig.get_path("purelib"))),
}


def python_of_nobody() -> str:
    """An interpreter of this version that an ordinary user may run; skips the test where there is none."""
    code = f"import sys, pydantic; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    for candidate in (sys.executable, "/usr/bin/python3"):
        program = [*AS_NOBODY, "sh", "-c", f'{candidate} -c "{code}"']
        if subprocess.run(program, env=PLAIN, capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip("an ordinary user may not run this Python")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_b02_kill_9_of_an_ordinary_users_worker_ends_its_confined_commands(root: Path) -> None:
    python = python_of_nobody()
    root.parent.chmod(0o755)
    temporary = root.parent / "tmp"
    temporary.mkdir()
    for directory in (root, temporary):
        os.chown(directory, NOBODY, NOBODY)
    process = subprocess.Popen(
        [*AS_NOBODY, python, "-m", "tests.support.checkout_worker", str(root), "60", DEAF, "on"],
        cwd=REPOSITORY,
        env=PLAIN | {"TMPDIR": str(temporary)} | {name: value for name, value in os.environ.items() if name == MARKER},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: (root / "ready").exists() or process.poll() is not None, "the command to run", 20)
        assert process.poll() is None, process.communicate()
        assert {entry.uids().real for entry in workspace_processes(root)} == {NOBODY}
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: workspace_processes(root) == [], "the commands to end")
    finally:
        process.kill()
        process.communicate()


def test_a_worker_that_was_killed_leaves_no_temporary_files_to_its_successor(root: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.checkout_worker", str(root), "60", "touch /tmp/x ready; sleep 300", "on"],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(root.parent)},
    )
    try:
        wait_until((root / "ready").exists, "the command to run", 20)
    finally:
        process.kill()
        process.wait()
    (left,) = root.parent.glob(f"{PREFIX}*")
    assert (left / "session-1" / "x").exists()

    async def successor() -> None:
        guard = Guard()
        await guard.start()
        sandbox = await find_sandbox("on", open_workspace(root), guard)
        assert sandbox
        assert not left.exists()
        sandbox.close()
        await guard.close()

    old = tempfile.tempdir
    tempfile.tempdir = str(root.parent)
    try:
        run(successor())
    finally:
        tempfile.tempdir = old
    assert not list(root.parent.glob(f"{PREFIX}*"))


def refusing(root: Path) -> str:
    """A program that fails as bubblewrap does where the kernel refuses namespaces."""
    path = root.parent / "bwrap"
    path.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("missing", [False, True])
def test_where_the_kernel_refuses_auto_goes_on_once_told_and_on_says_what_to_do(
    root: Path, missing: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "bubblewrap is missing" if missing else "No permissions to create a new namespace"

    async def work() -> None:
        guard = Guard()
        await guard.start()
        find = (lambda: None) if missing else (lambda: refusing(root))
        try:
            assert await find_sandbox("auto", open_workspace(root), guard, bubblewrap=find) is None
            assert capsys.readouterr().out.count(reason) == 1
            with pytest.raises(ConfigurationInvalid, match=reason) as caught:
                await find_sandbox("on", open_workspace(root), guard, bubblewrap=find)
            assert "TEAM_SANDBOX=auto" in caught.value.message
            assert await find_sandbox("off", open_workspace(root), guard, bubblewrap=find) is None
        finally:
            await guard.close()

    run(work())


def test_a_sandbox_that_stops_working_is_an_error_and_nothing_runs(root: Path) -> None:
    async def work() -> None:
        async with guarded(root, sandbox="on") as (desk, _):
            sandbox = desk.tools._bash._sandbox  # pyright: ignore[reportPrivateUsage]  # the fault is injected
            assert sandbox
            sandbox._program = refusing(root)  # pyright: ignore[reportPrivateUsage]
            code, message = await desk.fails("bash", command="touch ran")
            assert code == "FS_FAILED"
            assert "could not be confined" in message
            assert not (root / "ran").exists()

    run(work())


async def _true(value: bool) -> bool:
    return value
