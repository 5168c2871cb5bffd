"""The sandbox's engine: what a script may ask, where it pauses, and how it fails."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psutil
import pytest

from team.service.scripts import Ask, Bounds, Failed, Note, Outcome, Past, Pause, Returned, SandboxLost, Script, Scripts
from team.tools.workflow import DESCRIPTION
from tests.support.architecture import ROOT
from tests.support.waiting import wait_until

BOUNDS = Bounds(agents=6, notes=8, run_seconds=1.0, memory_bytes=64 * 2**20, prompt_bytes=1_000, tools=("read", "bash"))

PIPELINE = """
phase("find")
print("two\\nlines")
found = await parallel([agent(f"part {n}", label=f"p{n}", schema={"type": "object"}) for n in range(3)])
log(found)
last = await agent("join", tools=["read"])
return {"found": found, "last": last, "args": args}
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    made = Scripts()
    yield made
    made.close()


class Played:
    """A script over its runs, with the log that they leave."""

    def __init__(self, engine: Scripts, text: str, args: Any = None, bounds: Bounds = BOUNDS) -> None:
        self.engine, self.bounds = engine, bounds
        self.script = Script(text, args, seed="call-1")
        self.asks: list[Ask] = []
        self.notes: list[Note] = []
        self.batches: list[Mapping[int, Any]] = []
        self.pause: Pause | None = None
        self.delivered = 0

    def run(self, *batches: Mapping[int, Any]) -> Outcome:
        """One run behind these new batches of answers."""
        self.batches += batches
        phase = next((note.text for note in reversed(self.notes) if note.kind == "phase"), None)
        past = Past(tuple(self.asks), len(self.notes), phase, tuple(self.batches))
        outcome = self.engine.run(self.script, self.bounds, past, self.pause, self.delivered)
        self.asks += [record for record in outcome.records if isinstance(record, Ask)]
        self.notes += [record for record in outcome.records if isinstance(record, Note)]
        self.pause = outcome.end if isinstance(outcome.end, Pause) else None
        self.delivered = len(self.batches)
        return outcome


def failure(engine: Scripts, text: str, args: Any = None, bounds: Bounds = BOUNDS) -> str:
    end = Played(engine, text, args, bounds).run().end
    assert isinstance(end, Failed), end
    return end.message


def value(engine: Scripts, text: str, args: Any = None) -> str:
    end = Played(engine, text, args).run().end
    assert isinstance(end, Returned), end
    return end.value


ANSWERS: Sequence[Mapping[int, Any]] = ({1: "x"}, {0: None, 2: {"a": 1}}, {3: "end"})
RESULT = '{"found":[null,"x",{"a":1}],"last":"end","args":{"q":[1,null]}}'


class TestRuns:
    def test_a_script_pauses_for_its_agents_and_goes_on_with_each_batch_of_answers(self, engine: Scripts) -> None:
        played = Played(engine, PIPELINE, {"q": [1, None]})
        played.run()
        assert [note.text for note in played.notes] == ["find", "two", "lines"]
        assert [(ask.label, ask.prompt, ask.phase) for ask in played.asks] == [
            (f"p{n}", f"part {n}", "find") for n in range(3)
        ]
        assert played.asks[0].schema == {"type": "object"}
        assert played.run(ANSWERS[0]).records == ()
        joined = played.run(ANSWERS[1])
        assert [type(record) for record in joined.records] == [Note, Ask]
        assert played.asks[3] == Ask(label="agent 4", prompt="join", tools=("read",), phase="find")
        assert played.run(ANSWERS[2]).end == Returned(RESULT)

    def test_several_batches_are_given_in_their_order_in_one_run(self, engine: Scripts) -> None:
        played = Played(engine, PIPELINE, {"q": [1, None]})
        played.run()
        played.run(*ANSWERS[:2])
        assert played.run(ANSWERS[2]).end == Returned(RESULT)

    def test_a_script_that_another_version_paused_is_run_again_and_asks_for_nothing_twice(
        self, engine: Scripts
    ) -> None:
        played = Played(engine, PIPELINE, {"q": [1, None]})
        played.run()
        played.run(*ANSWERS[:2])
        assert played.pause is not None
        played.pause = replace(played.pause, snapshot=b"unreadable here", engine="pydantic-monty 0.1")
        asked, noted = len(played.asks), len(played.notes)
        outcome = played.run(ANSWERS[2])
        assert (outcome.end, outcome.records) == (Returned(RESULT), ())
        assert (len(played.asks), len(played.notes)) == (asked, noted)

    def test_a_replay_on_another_path_fails_instead_of_asking_for_other_agents(self, engine: Scripts) -> None:
        for changed in ('await agent("other")', "return 1"):
            played = Played(engine, 'await agent("first")\nawait agent("second")')
            played.run()
            played.script = replace(played.script, text=changed)
            played.pause = None
            end = played.run({0: "x"}).end
            assert isinstance(end, Failed)
            assert "asked for other agents than before" in end.message

    def test_clock_and_random_numbers_are_the_same_in_every_run(self, engine: Scripts) -> None:
        text = "import random, time, datetime\nreturn [random.random(), time.time(), str(datetime.datetime.now())]"
        assert value(engine, text) == value(engine, text)

    def test_a_killed_sandbox_says_nothing_of_the_script_and_is_replaced(self) -> None:
        engine = Scripts()
        before = set(psutil.Process().children())
        endless = Played(engine, "while True:\n    pass", bounds=replace(BOUNDS, run_seconds=60))

        def sandbox() -> psutil.Process | None:
            return next(iter(set(psutil.Process().children()) - before), None)

        try:
            with ThreadPoolExecutor(1) as pool:
                running = pool.submit(endless.run)
                process = wait_until(sandbox, "the sandbox's process", 30)
                assert process is not None
                process.kill()
                with pytest.raises(SandboxLost):
                    running.result(30)
            assert value(engine, "return 2") == "2"
        finally:
            engine.close()

    def test_null_is_a_value(self, engine: Scripts) -> None:
        assert value(engine, "x = 1") == "null"
        assert value(engine, "args", [1]) == "[1]"


def documented(text: str, end: str) -> str:
    return text[text.index('phase("review")') :].split(end, maxsplit=1)[0]


@pytest.mark.parametrize(
    "script",
    [
        documented(DESCRIPTION, "\0"),
        documented((ROOT / "docs" / "workflow.md").read_text(encoding="utf-8"), "```"),
    ],
    ids=["description", "page"],
)
def test_the_documented_examples_run(engine: Scripts, script: str) -> None:
    played = Played(engine, script, ["a.py", "b.py", "c.py"], replace(BOUNDS, tools=("read", "grep")))
    played.run()
    assert [ask.label for ask in played.asks] == ["a.py", "b.py", "c.py"]
    played.run({0: {"defects": ["x", "y"]}, 1: None, 2: {"defects": ["z"]}})
    assert played.asks[3].prompt == "Fix in a.py: ['x', 'y']"
    played.run({3: "done"})
    assert played.run({4: None}).end == Returned('{"defects":3,"fixed":1}')


class TestMisuse:
    @pytest.mark.parametrize(
        ("text", "place", "fault"),
        [
            ('\nawait agent("x", effort=3)', "line 2", "no option 'effort'; there are label, schema, tools"),
            ("await agent()", "line 1", "takes one prompt"),
            ('await agent("x", "y")', "line 1", "takes one prompt"),
            ('await agent(" ")', "line 1", "must be a text that is not empty"),
            ("await agent(5)", "line 1", "must be a text"),
            ('await agent("x" * 1001)', "line 1", "1001 bytes; the limit is 1000"),
            ('await agent("x", label="a\\nb")', "line 1", "label must be one line"),
            ('await agent("x", label="y" * 65)', "line 1", "at most 64 characters"),
            ('await agent("x", schema={"type": "array"})', "line 1", 'its "type" must be "object"'),
            ('await agent("x", schema={"type": "object", "required": 1})', "line 1", "$.required"),
            ('await agent("x", schema=5)', "line 1", "it is not an object"),
            ('await agent("x", tools=["rm"])', "line 1", "no tool 'rm'; there are read, bash"),
            ('await agent("x", tools="read")', "line 1", "tools must be a list"),
            ('phase("a", "b")', "line 1", "phase() takes one text"),
            ('spawn("x")', "line 1", "'spawn' is not defined"),
            ("x = unknown", "line 1", "NameError"),
            ("x = (", "line 1", "cannot be parsed"),
            ('agent("x")', "line 1", "never awaited"),
            ('def f():\n    raise ValueError("no")\n\nf()', "line 2", "ValueError: no"),
            ("import subprocess", "line 1", "no module 'subprocess'"),
            ('open("/etc/passwd")', "line 1", "no files, environment, network or sleep"),
            ("import os\nos.environ", "line 2", "no files, environment, network or sleep"),
            ("import time\ntime.sleep(1)", "line 2", "no files, environment, network or sleep"),
            ('await parallel([agent("a"), 5])', "line 1", "TypeError"),
        ],
    )
    def test_it_fails_the_script_with_the_place(self, engine: Scripts, text: str, place: str, fault: str) -> None:
        message = failure(engine, text)
        assert place in message
        assert fault in message

    def test_a_script_cannot_catch_its_own_misuse(self, engine: Scripts) -> None:
        assert "no option" in failure(engine, 'try:\n    await agent("x", no=1)\nexcept BaseException:\n    pass')

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("return {1, 2}", "not JSON serializable"),
            ("return 2**60", "beyond 2^53-1"),
            ('return float("nan")', "not JSON compliant"),
            ('return "\\x00"', "NUL"),
        ],
    )
    def test_a_value_that_is_no_json_is_refused(self, engine: Scripts, text: str, fault: str) -> None:
        assert fault in failure(engine, text)


class TestCaps:
    def test_agents(self, engine: Scripts) -> None:
        message = failure(engine, 'await parallel([agent(f"x{n}") for n in range(7)])')
        assert "asked for 6 agents, its limit" in message

    def test_agents_of_earlier_runs_count(self, engine: Scripts) -> None:
        played = Played(engine, 'for n in range(9):\n    await agent("x")')
        played.run()
        for number in range(5):
            assert isinstance(played.run({number: "y"}).end, Pause)
        end = played.run({5: "y"}).end
        assert isinstance(end, Failed)
        assert "line 2: this workflow has asked for 6 agents" in end.message

    def test_progress_records_end_a_script_that_writes_for_ever(self, engine: Scripts) -> None:
        assert "8 progress records" in failure(engine, "while True:\n    log(1)")
        assert "8 progress records" in failure(engine, "for n in range(20):\n    print(n)")

    def test_time(self, engine: Scripts) -> None:
        bounds = replace(BOUNDS, run_seconds=0.2)
        assert "time limit exceeded" in failure(engine, "while True:\n    pass", bounds=bounds)
        assert value(engine, "return 1") == "1"

    def test_memory(self, engine: Scripts) -> None:
        bounds = replace(BOUNDS, memory_bytes=8 * 2**20)
        assert "MemoryError" in failure(engine, "x = [0]\nwhile True:\n    x = x + x", bounds=bounds)
        assert value(engine, "return 1") == "1"

    def test_recursion(self, engine: Scripts) -> None:
        assert "RecursionError" in failure(engine, "def f(n):\n    return f(n + 1)\nreturn f(0)")
