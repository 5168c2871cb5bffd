"""The script model plays a scenario as a pure function of the file, the member and the conversation."""

import asyncio
import json
from pathlib import Path

import pytest

from team.model.content import ToolCallBlock, text_of
from team.model.errors import ConfigurationInvalid
from team.model.history import HistoryEntry
from team.model.ids import SessionId, TurnId
from team.model.snapshots import DelegationSource, SettlementSource
from tests.support.sessions import SessionLog, load
from workers.models import Answer, Conversation, ModelFailure
from workers.models.script import ScriptModel


class Stage:
    """One member that plays a scenario; every answer is also made from a reloaded history, with equal outcome."""

    def __init__(self, folder: Path, scenario: str, member: str = "lead") -> None:
        self.file = folder / "plan.yaml"
        self.file.write_text(scenario, encoding="utf-8")
        self.member = member
        self.log = SessionLog()

    def ask(self, conversation: Conversation) -> Answer:
        pieces: list[str] = []
        model = ScriptModel(str(self.file))
        answer = asyncio.run(model.answer(conversation, member=self.member, on_text=pieces.append))
        assert "".join(pieces) == text_of(answer.content)
        return answer

    def step(self) -> list[ToolCallBlock]:
        """The next answer's calls; its text is ``said``."""
        answer = self.ask(self.log.conversation)
        assert self.ask(load(self.log.dump())) == answer
        self.said = text_of(answer.content)
        self.finish = answer.finish_reason
        return self.log.answer(answer)

    def fails(self) -> str:
        with pytest.raises(ModelFailure) as caught:
            self.ask(self.log.conversation)
        failure = caught.value
        assert (failure.kind, failure.code, failure.retryable) == ("script", "script", False)
        assert str(self.file) in failure.message
        assert repr(self.member) in failure.message
        return failure.message


def loop(rules: str, calls: str = "[{tool: look, as: look}]", more: str = "") -> str:
    """A scenario whose state ``a`` calls and goes on by ``rules`` to ``yes`` or ``no``."""
    return f"""
members:
  lead:
    start: a
    states:
      a: {{calls: {calls}, next: {rules}, {more}}}
      yes: {{say: 'yes ${{message.text}}'}}
      no: {{say: no}}
      saved: {{say: '${{v}}'}}
"""


def test_an_answer_has_text_and_parallel_calls_with_arguments(tmp_path: Path) -> None:
    stage = Stage(tmp_path, loop("no", calls="[{tool: x, args: {b: 1, a: [true, null]}}, {tool: y}]", more="say: Hi."))
    stage.log.user("Go.")
    first, second = stage.step()
    assert stage.said == "Hi."
    assert stage.finish == "tool-calls"
    assert (first.name, first.arguments) == ("x", '{"b":1,"a":[true,null]}')
    assert (second.name, second.arguments) == ("y", "{}")
    assert first.call_id != second.call_id
    stage.log.results([first, second], "", "")
    assert stage.step() == []
    assert (stage.said, stage.finish) == ("no", "stop")


def outcome_of(stage: Stage, content: str, outcome: str = "ok") -> str:
    stage.log.user("Go.")
    (call,) = stage.step()
    assert outcome in {"ok", "error", "unknown"}
    stage.log.result(call, 0, content, outcome)  # pyright: ignore[reportArgumentType]  # checked above
    stage.step()
    return stage.said


BOARD = json.dumps(
    {
        "tasks": [
            {"id": "task-1", "revision": 3, "subject": "Fix: it, now", "status": "completed", "ready": False},
            {"id": "task-2", "revision": 1, "subject": "Two", "status": "pending", "ready": True, "ownerName": None},
        ]
    }
)


@pytest.mark.parametrize(
    ("condition", "content", "outcome", "holds"),
    [
        ("{call: look, outcome: ok}", "", "ok", True),
        ("{call: look, outcome: ok}", "", "unknown", False),
        ("{call: look, outcome: unknown}", "", "unknown", True),
        ("{call: look, contains: STALE}", '{"error":{"code":"TEAM_TASK_STALE_REVISION"}}', "error", True),
        ("{call: look, contains: STALE}", "fine", "ok", False),
        ("{call: look, outcome: error, contains: STALE}", "STALE", "ok", False),
        ("{call: look, regex: 'Ran [0-9]+ tests'}", "…\nRan 12 tests in 1s", "ok", True),
        ("{call: look, regex: '^Ran$'}", "Ran 12", "ok", False),
        ("{call: look, field: 'tasks[0].id', equals: task-1}", BOARD, "ok", True),
        ("{call: look, field: 'tasks[0].revision', equals: 3}", BOARD, "ok", True),
        ("{call: look, field: 'tasks[0].revision', equals: '3'}", BOARD, "ok", False),
        ("{call: look, field: 'tasks[1].revision', equals: true}", BOARD, "ok", False),
        ("{call: look, field: 'tasks[0].ready', equals: false}", BOARD, "ok", True),
        ("{call: look, field: 'tasks[subject=Fix: it, now].status', equals: completed}", BOARD, "ok", True),
        ("{call: look, field: 'tasks[subject=Nothing].status', equals: completed}", BOARD, "ok", False),
        ("{call: look, field: 'tasks[*].status', equals: completed}", BOARD, "ok", False),
        ("{call: look, field: 'tasks[*].status', equals: completed}", '{"tasks":[]}', "ok", False),
        ("{call: look, field: '[*]', equals: 1}", "[1,1]", "ok", True),
        (
            "{call: look, field: '[status=running].target', equals: bob}",
            '[{"status":"running","target":"bob"}]',
            "ok",
            1,
        ),
        ("{call: look, field: 'tasks[1].ownerName'}", BOARD, "ok", False),
        ("{call: look, field: 'tasks[1].ownerName', equals: null}", BOARD, "ok", True),
        ("{call: look, field: 'tasks[2]'}", BOARD, "ok", False),
        ("{call: look, field: tasks}", '{"tasks":[]}', "ok", False),
        ("{call: look, field: tasks}", "not json", "ok", False),
        ("{call: look, field: tasks}", "[" * 100_000, "ok", False),
        ("{not: {call: look, outcome: ok}}", "", "error", True),
        ("{all: [{call: look, outcome: ok}, {call: look, contains: x}]}", "x", "ok", True),
        ("{all: [{call: look, outcome: ok}, {call: look, contains: x}]}", "y", "ok", False),
        ("{any: [{call: look, outcome: error}, {call: look, contains: x}]}", "x", "ok", True),
        ("{any: [{call: look, outcome: error}, {call: look, contains: x}]}", "y", "ok", False),
        ("{message: {}}", "", "ok", False),
    ],
)
def test_a_rule_holds_by_the_calls_result(
    tmp_path: Path, condition: str, content: str, outcome: str, holds: bool
) -> None:
    stage = Stage(tmp_path, loop(f"[{{when: {condition}, goto: yes}}, {{goto: no}}]"))
    assert outcome_of(stage, content, outcome).startswith("yes" if holds else "no")


@pytest.mark.parametrize(
    ("source", "content", "said"),
    [
        ("{call: look, field: 'tasks[subject=Two].id'}", BOARD, "task-2"),
        ("{call: look, field: 'tasks[0].revision'}", BOARD, "3"),
        ("{call: look, field: 'tasks[*].id'}", BOARD, '["task-1", "task-2"]'),
        ("{call: look, regex: 'Ran ([0-9]+) tests'}", "Ran 12 tests", "12"),
        ("{call: look, regex: 'Ran [0-9]+'}", "Ran 12 tests", "Ran 12"),
        ("{call: look}", "plain", "plain"),
        ("{call: look}", '{"a":1}', '{"a": 1}'),
        ("{value: 'for ${member}'}", "", "for lead"),
        ("{call: look, field: gone, default: none}", "{}", "none"),
        ("{call: look, field: gone, default: none}", "no json", "none"),
        ("{call: look, regex: gone, default: '${member}'}", "", "lead"),
        ("{value: '$${HOME} of $${x}'}", "", "${HOME} of ${x}"),
    ],
)
def test_a_rule_saves_values_for_later_texts(tmp_path: Path, source: str, content: str, said: str) -> None:
    stage = Stage(tmp_path, loop(f"[{{save: {{v: {source}}}, goto: saved}}]"))
    assert outcome_of(stage, content) == said


def test_a_saved_number_stays_a_number_in_arguments(tmp_path: Path) -> None:
    scenario = """
members:
  lead:
    start: create
    states:
      create:
        calls: [{tool: team_task_create, as: new}]
        next: [{save: {task: {call: new}}, goto: claim}]
      claim:
        calls:
          - tool: team_task_update
            args: {task_id: '${task.id}', expected_revision: '${task.revision}', n: 'x${task.revision}'}
        next: create
"""
    stage = Stage(tmp_path, scenario)
    stage.log.user("Go.")
    stage.log.results(stage.step(), '{"id":"task-7","revision":1,"blockedBy":[]}')
    (call,) = stage.step()
    assert call.arguments == '{"task_id":"task-7","expected_revision":1,"n":"x1"}'


def test_verbatim_arguments_may_be_no_json(tmp_path: Path) -> None:
    stage = Stage(tmp_path, loop("no", calls="[{tool: look, arguments: '{\"path\": '}]"))
    stage.log.user("Go.")
    (call,) = stage.step()
    assert call.arguments == '{"path": '


@pytest.mark.parametrize(
    ("rules", "content", "reason"),
    [
        ("[{when: {call: look, outcome: error}, goto: yes}]", "a result", "no rule holds"),
        ("[{save: {v: {call: look, field: gone}}, goto: saved}]", '{"a":1}', "finds no 'gone'"),
        ("[{save: {v: {call: look, field: gone}}, goto: saved}]", "text", "not JSON"),
        ("[{save: {v: {call: look, regex: gone}}, goto: saved}]", "text", "does not match"),
        ("[{goto: saved}]", "", "${v} has no value"),
    ],
)
def test_a_scenario_without_a_way_on_fails_loudly_with_its_place(
    tmp_path: Path, rules: str, content: str, reason: str
) -> None:
    stage = Stage(tmp_path, loop(rules))
    stage.log.user("Go.")
    stage.log.results(stage.step(), content)
    message = stage.fails()
    assert reason in message
    assert "'a'" in message or "'saved'" in message


def test_a_loop_is_bounded_in_each_turn_and_fails_loudly(tmp_path: Path) -> None:
    stage = Stage(tmp_path, loop("[{when: {call: look, contains: done}, goto: no}, {goto: a}]", more="max_visits: 3"))
    scenario = stage.file.read_text().replace("no: {say: no}", "no: {say: no, on_message: a}")
    stage.file.write_text(scenario)
    for _ in range(2):
        stage.log.user("Go.")
        stage.log.results(stage.step(), "not yet")
        stage.log.results(stage.step(), "not yet")
        stage.log.results(stage.step(), "done")
        assert stage.step() == []
    stage.log.user("Go.")
    for _ in range(3):
        stage.log.results(stage.step(), "not yet")
    assert "visited 3 times" in stage.fails()


def test_a_later_turn_begins_at_on_message_of_the_state_before_that_of_the_member(tmp_path: Path) -> None:
    scenario = """
members:
  lead:
    start: first
    on_message: second
    states:
      first: {say: 'first ${message.text}'}
      second: {say: 'second ${message.text}', on_message: third}
      third: {say: 'third ${message.text}'}
"""
    stage = Stage(tmp_path, scenario)
    for said in ("first 0", "second 1", "third 2", "second 3"):
        stage.log.user(said[-1])
        assert stage.step() == []
        assert stage.said == said


def test_a_turn_without_a_place_to_begin_fails_loudly(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "members: {lead: {start: a, states: {a: {say: Done.}}}}")
    stage.log.user("Go.")
    stage.step()
    stage.log.user("More.")
    assert "no on_message" in stage.fails()


def test_messages_are_kept_until_a_rule_takes_them(tmp_path: Path) -> None:
    """M02: one that arrives before the state which waits for it is not missed, and is taken once."""
    wait = "[{when: {message: {from: alice, contains: done}}, goto: yes}, {goto: a}]"
    scenario = loop(wait).replace(
        "yes: {say: 'yes ${message.text}'}", "yes: {say: 'yes ${message.text}', on_message: a}"
    )
    stage = Stage(tmp_path, scenario)
    stage.log.user("Go.")
    stage.log.message("alice", "all done")
    stage.log.message("bob", "done too")
    stage.log.results(stage.step(), "")
    assert stage.step() == []
    assert stage.said == "yes all done"
    stage.log.message("carol", "hello")
    stage.log.results(stage.step(), "")
    assert len(stage.step()) == 1


def test_a_message_in_the_middle_of_a_turn_is_seen_at_the_next_answer(tmp_path: Path) -> None:
    stage = Stage(tmp_path, loop("[{when: {message: {from: alice}}, goto: yes}, {goto: a}]"))
    stage.log.user("Go.")
    stage.log.results(stage.step(), "")
    stage.log.results(stage.step(), "")
    stage.log.message("alice", "news")
    stage.step()
    assert stage.said == "yes news"


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("{kind: human}", "yes from a human"),
        ("{from: human, regex: '^from a h'}", "yes from a human"),
        ("{kind: delegation, from: lead}", "yes the prompt"),
        ("{kind: settlement}", "yes dora ended"),
        ("{from: dora}", "yes dora ended"),
        ("{kind: team-message}", "yes from bob"),
        ("{from: '${member}', kind: team-message}", "no"),
    ],
)
def test_a_message_is_found_by_sender_kind_and_text(tmp_path: Path, test: str, said: str) -> None:
    stage = Stage(tmp_path, loop(f"[{{when: {{message: {test}}}, goto: yes}}, {{goto: no}}]"))
    stage.log.user("first")
    stage.log.identity("[Runtime context. from nobody]")
    call = stage.step()
    stage.log.results(call, "")
    stage.log.user("the prompt", source=DelegationSource(sender_id=SessionId("l"), sender_name="lead"))
    settled = SettlementSource(member_id=SessionId("d"), member_name="dora", turn_id=TurnId("t"))
    stage.log.user("dora ended", source=settled)
    stage.log.user("from a human")
    stage.log.message("bob", "from bob")
    stage.step()
    assert stage.said == said


def test_an_entry_may_branch_on_the_message_that_opened_the_turn(tmp_path: Path) -> None:
    scenario = """
members:
  lead:
    start:
      - {when: {message: {contains: stop}}, goto: halt}
      - {goto: work}
    states:
      halt: {say: halting}
      work: {say: working}
"""
    for text, said in (("please stop", "halting"), ("please go", "working")):
        stage = Stage(tmp_path, scenario)
        stage.log.user(text)
        stage.step()
        assert stage.said == said


def test_call_ids_never_repeat_in_a_session_and_differ_between_members(tmp_path: Path) -> None:
    seen: set[str] = set()
    scenario = "default: {start: a, states: {a: {calls: [{tool: look}], next: a}}}"
    for member in ("lead", "alice", "bob"):
        stage = Stage(tmp_path, scenario, member)
        stage.log.user("Go.")
        for _ in range(20):
            calls = stage.step()
            assert not seen & {call.call_id for call in calls}
            seen |= {call.call_id for call in calls}
            stage.log.results(calls, "")
    assert len(seen) == 60


def test_a_fork_begins_its_own_part_where_the_inherited_history_ends(tmp_path: Path) -> None:
    scenario = """
members:
  lead: {start: a, on_message: a, states: {a: {say: 'lead: ${message.text}'}}}
  alice: {start: a, states: {a: {say: 'alice: ${message.text}'}}}
"""
    stage = Stage(tmp_path, scenario)
    stage.log.user("Go.")
    stage.step()
    stage.member = "alice"
    stage.log.identity("[Runtime context. You are the teammate alice: x]")
    stage.log.user("Your prompt.", source=DelegationSource(sender_id=SessionId("l"), sender_name="lead"))
    stage.step()
    assert stage.said == "alice: Your prompt."


def test_a_compaction_does_not_lose_the_state(tmp_path: Path) -> None:
    stage = Stage(tmp_path, loop("[{when: {call: look, contains: x}, goto: yes}, {goto: no}]"))
    stage.log.user("Go.")
    calls = stage.step()
    stage.log.compact("so far")
    stage.log.results(calls, "x")
    stage.step()
    assert stage.said.startswith("yes")


def test_think_time_streams_the_text_in_pieces(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "members: {lead: {start: a, states: {a: {say: A text of some words., think_ms: 30}}}}")
    stage.log.user("Go.")
    pieces: list[str] = []
    model = ScriptModel(str(stage.file))
    answer = asyncio.run(model.answer(stage.log.conversation, member="lead", on_text=pieces.append))
    assert len(pieces) > 1
    assert "".join(pieces) == text_of(answer.content) == "A text of some words."


def test_a_thinking_answer_can_be_cancelled(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "members: {lead: {start: a, states: {a: {say: x, think_ms: 600000}}}}")

    async def act() -> None:
        model = ScriptModel(str(stage.file))
        task = asyncio.create_task(model.answer(stage.log.conversation, member="lead", on_text=lambda _: None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(act())


@pytest.mark.parametrize("finish", ["stop", "max-tokens", "refusal"])
def test_the_last_answer_may_have_another_finish_reason(tmp_path: Path, finish: str) -> None:
    stage = Stage(tmp_path, f"members: {{lead: {{start: a, states: {{a: {{say: x, finish: {finish}}}}}}}}}")
    stage.log.user("Go.")
    stage.step()
    assert stage.finish == finish


def test_a_member_without_a_part_fails_loudly(tmp_path: Path) -> None:
    stage = Stage(tmp_path, loop("no"), "stranger")
    assert "no such member" in stage.fails()


def test_a_malformed_file_is_refused_when_the_model_is_made(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("members: 1")
    with pytest.raises(ConfigurationInvalid, match=str(file)):
        ScriptModel(str(file))


def test_a_lost_result_is_answered_by_its_outcome(tmp_path: Path) -> None:
    """A worker killed in the middle of a call leaves an unknown outcome; the scenario decides what to do."""
    stage = Stage(tmp_path, loop("[{when: {call: look, outcome: unknown}, goto: a}, {goto: no}]"))
    stage.log.user("Go.")
    (call,) = stage.step()
    stage.log.result(call, 0, "The outcome of this call is unknown.", "unknown")
    (again,) = stage.step()
    assert again.call_id != call.call_id
    stage.log.result(again, 0, "fine")
    entries: list[HistoryEntry] = stage.log.entries
    assert len(entries) == 6
    stage.step()
    assert stage.said == "no"
