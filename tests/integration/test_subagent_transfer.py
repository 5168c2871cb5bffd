"""Trees with subagents: out of one store and into another, whatever was under way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.core import Core, create_tables
from tests.support.invariants import assert_sound
from tests.support.subagents import background, children_of, descriptor, foreground, resumed, root
from tests.support.transfers import export, import_


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Core]:
    """A second store; what an import leaves there must be sound."""
    url = f"sqlite:///{tmp_path / 'other.db'}"
    create_tables(url)
    core = Core(url, tmp_path / "checkout")
    yield core
    try:
        assert_sound(core)
    finally:
        core.close()


def test_a_tree_moves_with_its_subagents_and_their_descriptors(core: Core, other: Core) -> None:
    parent, agent = root(core)
    kept = background(agent, label="kept", tools=["read"])
    core.agent(kept).finish("ready")
    lines = export(core, parent)
    import_(other, lines)
    assert export(other, parent) == lines
    assert descriptor(other, kept) == descriptor(core, kept)
    assert other.act(parent, "list_agents") == core.act(parent, "list_agents")
    other.act(parent, "send_message", agent_id=kept, message="go on there")
    assert other.agent(kept).begin() == ["go on there"]


def test_a_parked_call_joins_its_running_child_again(core: Core, other: Core) -> None:
    parent, agent = root(core)
    child = foreground(agent)
    import_(other, export(core, parent))
    again = other.agent(parent)
    (pending,) = again.claim.pending
    assert not pending.waiting
    assert again.run_call().state == "waiting"
    assert again.boundary().action == "parked"
    other.agent(child).finish("over here")
    assert resumed(other, parent).last_result()["text"] == "over here"
    assert children_of(other, parent) == [child]


def test_a_child_that_ends_before_its_call_is_made_again_is_not_missed(core: Core, other: Core) -> None:
    parent, agent = root(core)
    child = foreground(agent)
    core.agent(child).begin()
    import_(other, export(core, parent))
    other.agent(child).finish("first")
    again = other.agent(parent)
    result = again.run_call()
    assert result.state == "done"
    assert again.boundary().action == "step"
    assert again.last_result() == {"label": "helper", "text": "first"}
    assert children_of(other, parent) == [child]


def test_a_child_that_failed_before_its_call_is_made_again_fails_it(core: Core, other: Core) -> None:
    parent, agent = root(core)
    child = foreground(agent)
    import_(other, export(core, parent))
    other.sessions.interrupt(child, actor="tester")
    again = other.agent(parent)
    again.run_call()
    again.begin()
    assert again.last_result()["error"]["code"] == "SUBAGENT_FAILED"


def test_the_notice_of_a_child_in_the_background_comes_in_the_other_store(core: Core, other: Core) -> None:
    parent, agent = root(core)
    child = background(agent)
    agent.finish("later")
    import_(other, export(core, parent))
    other.agent(child).finish("found it")
    assert "found it" in other.agent(parent).begin()[0]


def test_a_fork_of_a_parent_keeps_what_its_subagents_answered_and_none_of_them(core: Core) -> None:
    parent, agent = root(core)
    core.agent(foreground(agent)).finish("the answer of the child")
    resumed(core, parent).finish("thanks")
    forked = core.sessions.fork(parent, model=None, once=None).id
    assert children_of(core, forked) == []
    assert core.act(forked, "list_agents") == []
    core.prompt(forked, "and now?")
    agent = core.agent(forked)
    agent.begin()
    assert "the answer of the child" in " ".join(entry.to_json() for entry in agent.history)


def test_a_fork_of_a_subagent_is_a_root_with_a_life_of_its_own(core: Core) -> None:
    _, agent = root(core)
    child = foreground(agent)
    core.agent(child).finish("done")
    forked = core.sessions.fork(child, model=None, once=None).id
    assert core.head(forked).descriptor is None
    core.prompt(forked, "go on")
    core.agent(forked).finish("as a root")
    core.prompt(forked, "and again")
    assert core.run(forked) is not None
