"""Agents with subagents, played by hand."""

from typing import Any

from sqlalchemy import text

from team.model.events import SubagentDescribed
from team.model.ids import SessionId
from tests.support.core import Agent, Core


def root(core: Core, prompt: str = "go") -> tuple[SessionId, Agent]:
    """A root under ``base`` in its first step."""
    session_id = core.lead(prompt, profile="base")
    agent = core.agent(session_id)
    agent.begin()
    return session_id, agent


def children_of(core: Core, parent: str) -> list[SessionId]:
    """The direct children of a Session in order of creation."""
    statement = "SELECT id FROM session WHERE parent_id = :parent ORDER BY created_order, id"
    rows = core.reading(lambda connection: connection.execute(text(statement), {"parent": parent}).scalars().all())
    return [SessionId(str(row)) for row in rows]


def foreground(agent: Agent, **arguments: Any) -> SessionId:
    """One step that asks for a one-shot subagent, and the boundary that parks behind it; the child."""
    known = set(children_of(agent.core, agent.claim.session_id))
    assert agent.call("subagent", **{"label": "helper", "prompt": "help", **arguments}) is None
    assert agent.boundary().action == "parked"
    (child,) = set(children_of(agent.core, agent.claim.session_id)) - known
    return child


def background(agent: Agent, **arguments: Any) -> SessionId:
    """One step that asks for a continuable subagent; the child."""
    result = agent.call("subagent", **{"label": "helper", "prompt": "help", "background": True, **arguments})
    return SessionId(result["agentId"])


def descriptor(core: Core, session_id: str) -> SubagentDescribed:
    found = core.head(session_id).descriptor
    assert found is not None
    return found


def resumed(core: Core, session_id: str) -> Agent:
    """The parent's turn, claimed behind the end of its waits, with the results in its history."""
    agent = core.agent(session_id)
    agent.begin()
    return agent
