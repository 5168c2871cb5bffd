"""Compaction in the log: exactly one summary per step, and what requests go on from."""

from typing import Any

import pytest

from team.log import projections
from team.log.events import read_history
from team.model.claims import CompactRequest, CompactResult
from team.model.content import TextBlock
from team.model.errors import InvalidArgument, TurnConflict, TurnFenced
from team.model.events import SessionCompacted, Usage
from team.model.history import HistoryEntry, SummaryEntry
from team.model.ids import SessionId
from team.service.housekeeping import Housekeeping
from tests.integration.conftest import MakeCore
from tests.support.core import Agent, Core, words_of
from workers.models import Conversation


def compact(agent: Agent, summary: str = "We looked at a.", **more: Any) -> CompactResult:
    request = CompactRequest(
        **{**agent.numbered(), **more},
        step=agent.step,
        summary=summary,
        model="m",
        usage=Usage(input_tokens=90, output_tokens=10),
        history_after=agent.seq,
    )
    result = agent.core.turns.compact(agent.ref, request)
    agent.history.extend(result.history)
    return result


def compactions(core: Core, session_id: str) -> list[SessionCompacted]:
    return [data for event in core.log(session_id) if isinstance(data := event.decoded(), SessionCompacted)]


def shown(entries: list[HistoryEntry]) -> tuple[Any, ...]:
    """What requests are built from, of a conversation that was given these entries."""
    conversation = Conversation()
    conversation.extend(entries)
    header = conversation.header
    return header, conversation.summary, conversation.items, conversation.newest_answer, conversation.since


def cold(core: Core, session_id: str) -> list[HistoryEntry]:
    seq = core.head(session_id).compacted_seq
    return core.reading(lambda connection: read_history(connection, session_id, 0, seq))


@pytest.fixture
def agent(core: Core) -> Agent:
    """A Lead in its second step, before the answer: it read a file, and was told something meanwhile."""
    lead = core.lead("Find the fault.")
    played = core.agent(lead)
    played.ask(("read", {"path": "a"}))
    played.local_result(content="contents of a")
    core.prompt(lead, "It is in a.", steer=True)
    assert played.begin() == ["It is in a."]
    return played


def test_a_compaction_keeps_the_turns_input_and_restates_who_the_session_is(agent: Agent) -> None:
    core, lead = agent.core, agent.claim.session_id
    compact(agent)
    (logged,) = compactions(core, lead)
    assert [words_of(message.content) for message in logged.kept] == ["Find the fault.", "It is in a."]
    assert "You are the Lead of this Team" in logged.context
    assert core.types(lead)[-1] == "session/compacted"


def test_a_warm_worker_and_a_cold_one_go_on_from_the_same_history(agent: Agent) -> None:
    core, lead = agent.core, agent.claim.session_id
    compact(agent)
    warm, after_restart = shown(agent.history), shown(cold(core, lead))
    assert warm == after_restart
    header, summary, items, newest, since = warm
    assert header is not None
    assert summary is not None
    assert items == []
    assert newest is not None, "a script goes on from the newest answer"
    assert [entry.kind for entry in since] == ["tool-result", "user"]
    agent.answered = False
    agent.answer(TextBlock(text="found"))
    core.lose_worker(lead)
    again = core.agent(lead, known={str(lead): 3})
    assert again.claim.history_after == 0, "what a worker held from before the compaction is of no use"
    assert [entry.kind for entry in shown(list(again.claim.history))[2]] == ["assistant"]


def test_a_second_compaction_of_a_step_is_refused_and_the_claim_says_that_one_was_made(agent: Agent) -> None:
    core, lead = agent.core, agent.claim.session_id
    compact(agent)
    with pytest.raises(TurnConflict, match="compacted before"):
        compact(agent)
    core.lose_worker(lead)
    again = core.agent(lead)
    assert (again.claim.step, again.claim.answered, again.claim.compacted) == (2, False, True)
    with pytest.raises(TurnConflict):
        compact(again)
    assert len(compactions(core, lead)) == 1


def test_a_repeated_write_gives_the_same_summary_and_appends_nothing(agent: Agent) -> None:
    core, lead = agent.core, agent.claim.session_id
    first = compact(agent)
    count = core.count()
    agent.history = agent.history[: -len(first.history)]
    agent.written -= 1
    again = compact(agent)
    assert again == first
    assert isinstance(again.history[0], SummaryEntry)
    assert core.count() == count
    assert len(compactions(core, lead)) == 1


def test_a_fenced_worker_compacts_nothing(agent: Agent) -> None:
    core, lead = agent.core, agent.claim.session_id
    core.lose_worker(lead)
    core.agent(lead)
    with pytest.raises(TurnFenced):
        compact(agent)
    assert compactions(core, lead) == []


def test_a_summary_stands_before_an_answer_never_between_it_and_its_results(agent: Agent) -> None:
    agent.ask(("read", {"path": "b"}))
    with pytest.raises(TurnConflict):
        compact(agent)


def test_a_summary_that_cannot_be_stored_is_refused(agent: Agent) -> None:
    with pytest.raises(InvalidArgument, match="cannot be stored"):
        compact(agent, summary="a\0b")


def test_the_cost_of_a_summary_counts_and_replay_equals_the_projections(agent: Agent) -> None:
    core, lead = agent.core, agent.claim.session_id
    compact(agent)
    totals = core.head(lead).totals
    assert (totals.tokens, totals.compactions) == (100, 1)
    assert core.reading(lambda connection: projections.fault_of(connection, SessionId(lead))) is None


def test_long_input_of_earlier_steps_is_left_to_the_summary_and_unanswered_input_never(make_core: MakeCore) -> None:
    core = make_core()
    lead = core.lead("x" * 40_000)
    agent = core.agent(lead)
    agent.ask(("read", {"path": "a"}))
    agent.local_result()
    core.prompt(lead, "y" * 40_000, steer=True)
    agent.begin()
    compact(agent)
    (logged,) = compactions(core, lead)
    assert [words_of(message.content)[0] for message in logged.kept] == ["y"]


def test_a_fork_of_a_compacted_session_goes_on_from_its_summary(agent: Agent) -> None:
    core, lead = agent.core, agent.claim.session_id
    compact(agent, "All of it.")
    agent.answered = False
    agent.finish("found")
    forked = core.sessions.fork(lead, model=None, once=None).id
    core.prompt(forked, "And now?")
    _header, summary, items, _newest, _since = shown(list(core.agent(forked).claim.history))
    assert summary is not None
    assert summary.summary == "All of it."
    assert [entry.kind for entry in items] == ["assistant"]
    assert core.head(forked).totals.tokens == 0


def test_r06_a_compacted_lead_still_knows_its_team_and_lists_all_of_it(agent: Agent) -> None:
    core, lead = agent.core, agent.claim.session_id
    bob = core.idle(lead, "bob")
    core.act(lead, "team_task_create", subject="Parse it", description="d")
    core.act(lead, "team_task_create", subject="Print it", description="d")
    core.act(lead, "team_task_update", task_id="task-1", expected_revision=1, action="claim")
    core.act(bob, "send_message", target="lead", message="I am here.")
    compact(agent)
    (logged,) = compactions(core, lead)
    for line in ("- bob (active): does bob", "Your open tasks:\n- task-1 (in_progress", "Other open tasks:\n- task-2"):
        assert line in logged.context
    header = next(entry for entry in cold(core, lead) if entry.kind == "header")
    assert "Only the Lead creates" in header.header.system

    agent.answered = False
    roster = agent.call("list_agents")
    assert [member["target"] for member in roster] == ["lead", "bob"]
    board = agent.call("team_task_list")
    assert [task["subject"] for task in board["tasks"]] == ["Parse it", "Print it"]
    assert agent.call("send_message", target="bob", message="go on")["status"] == "accepted"
    mail = [entry for entry in agent.history if entry.kind == "user" and entry.source.kind == "team-message"]
    assert "from bob" in words_of(mail[-1].content)


def test_t11_tasks_outlive_a_compaction_of_the_lead_and_a_restart_under_every_filter(make_core: MakeCore) -> None:
    core = make_core()
    lead = core.lead("go")
    agent = core.agent(lead)
    for number in range(1, 4):
        agent.call("team_task_create", subject=f"task {number}", description="d")
    agent.call("team_task_update", task_id="task-1", expected_revision=1, action="claim")
    agent.call("team_task_update", task_id="task-1", expected_revision=2, action="complete")
    agent.begin()
    compact(agent)
    again = make_core()
    Housekeeping(again.store).tidy({"writes": 0, "requests": 0})

    def listed(**filters: Any) -> list[str]:
        return [task["id"] for task in again.act(lead, "team_task_list", **filters)["tasks"]]

    assert listed() == ["task-1", "task-2", "task-3"]
    assert (listed(status="completed"), listed(ready=True)) == (["task-1"], ["task-2", "task-3"])
    assert (listed(owner="lead"), listed(owner="unowned")) == (["task-1"], ["task-2", "task-3"])
    (logged,) = compactions(again, lead)
    assert "task-1" not in logged.context, "it is completed"
