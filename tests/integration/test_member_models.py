"""A model for each member: who may choose which, that it lasts, and that a missing one hurts its member alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from team.model.claims import FailRequest
from team.model.events import RequestHeader, SessionModel
from tests.integration.conftest import MakeCore
from tests.support.core import Core

SMALL, LARGE = "openai-chat:small", "anthropic:large"
MakeChoosing = Callable[[], Core]


@pytest.fixture
def choosing(make_core: MakeCore, tmp_path: Path) -> MakeChoosing:
    """Makes a core whose profile ``choosing`` allows two models for teammates."""
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    shipped = (Path(__file__).parents[2] / "config" / "profiles" / "team.toml").read_text(encoding="utf-8")
    (profiles / "choosing.toml").write_text(f'allowed_models = ["{SMALL}", "{LARGE}"]\n{shipped}', encoding="utf-8")
    return lambda: make_core(profile_dir=profiles)


def spawn(core: Core, lead: str, name: str, **more: Any) -> Any:
    return core.act(lead, "spawn_teammate", name=name, description="d", prompt="begin", **more)


def headers(core: Core, session_id: str) -> list[RequestHeader]:
    return [data for event in core.log(session_id) if isinstance(data := event.decoded(), RequestHeader)]


def spawn_schema(core: Core, session_id: str) -> dict[str, Any]:
    (header,) = headers(core, session_id)
    return next(tool["parameters"]["properties"] for tool in header.tools if tool["name"] == "spawn_teammate")


def test_the_parameter_is_shown_where_the_profile_allows_models_with_exactly_these(choosing: MakeChoosing) -> None:
    core = choosing()
    lead, plain = core.lead("go", profile="choosing"), core.lead("go")
    core.agent(lead).begin()
    core.agent(plain).begin()
    shown = spawn_schema(core, lead)["model"]
    assert shown["anyOf"][0] == {"enum": [SMALL, LARGE], "type": "string"}
    assert "model" not in spawn_schema(core, plain)


@pytest.mark.parametrize("context", ["fresh", "fork"])
def test_a_chosen_model_is_durable_shown_and_changes_the_header_once(choosing: MakeChoosing, context: str) -> None:
    core = choosing()
    lead = core.lead("go", profile="choosing")
    agent = core.agent(lead)
    agent.finish("hello")
    core.prompt(lead, "spawn")
    agent = core.agent(lead)
    created = agent.call("spawn_teammate", name="bob", description="d", prompt="begin", context=context, model=SMALL)
    assert created["member"]["model"] == SMALL
    assert core.member(lead, "bob")["model"] == SMALL
    bob = core.sessions.member_session(lead, "bob")
    logged = [data.model for event in core.log(bob) if isinstance(data := event.decoded(), SessionModel)]
    assert logged == [SMALL]
    working = core.agent(bob)
    assert working.claim.model == SMALL
    working.finish("ready")
    core.act(lead, "send_message", target="bob", message="more")
    resumed = core.agent(bob, worker="w2")
    assert resumed.claim.model == SMALL
    resumed.finish("done")
    own = [header.model for header in headers(core, bob)]
    assert own == (["script:unused", SMALL] if context == "fork" else [SMALL])


def test_without_a_choice_a_teammate_has_the_leads_model(choosing: MakeChoosing) -> None:
    core = choosing()
    lead = core.lead("go", profile="choosing")
    core.sessions.select_model(lead, "openai-chat:the-leads")
    spawn(core, lead, "bob")
    assert core.agent(core.sessions.member_session(lead, "bob")).claim.model == "openai-chat:the-leads"


def test_another_model_is_refused_and_reserves_no_name(choosing: MakeChoosing) -> None:
    core = choosing()
    lead = core.lead("go", profile="choosing")
    wanted = {"name": "bob", "description": "d", "prompt": "p", "model": "openai-chat:dear"}
    assert core.refused(lead, "spawn_teammate", **wanted) == "TEAM_MODEL_NOT_ALLOWED"
    agent = core.agent(lead)
    result = agent.call("spawn_teammate", **wanted)
    assert result["error"]["code"] == "TEAM_MODEL_NOT_ALLOWED"
    assert SMALL in result["error"]["message"]
    assert len(core.act(lead, "list_agents")) == 1
    assert spawn(core, lead, "bob", model=LARGE)["member"]["model"] == LARGE


def test_a_profile_without_a_list_allows_no_model_at_all(core: Core) -> None:
    lead = core.lead("go")
    wanted = {"name": "bob", "description": "d", "prompt": "p", "model": "script:unused"}
    assert core.refused(lead, "spawn_teammate", **wanted) == "TEAM_MODEL_NOT_ALLOWED"


def test_r11_a_member_whose_model_is_gone_stops_with_the_reason_and_hurts_nobody(choosing: MakeChoosing) -> None:
    core = choosing()
    lead = core.lead("go", profile="choosing")
    core.agent(lead).finish()
    spawn(core, lead, "bob", model=SMALL)
    spawn(core, lead, "alice")
    bob, alice = (core.sessions.member_session(lead, name) for name in ("bob", "alice"))
    agent = core.agent(bob)
    agent.begin()
    core.turns.fail(agent.ref, FailRequest(**agent.numbered(), code="not-found", message="there is no such model"))
    assert core.run(bob) is None
    assert core.recovery.expire_waits() == 0
    assert core.run(bob) is None, "nothing starts it again by itself"

    core.agent(alice).finish("I am fine")
    shown = {member.target: member for member in core.sessions.team(lead).members}
    assert "not-found" in " ".join(shown["bob"].diagnostics)
    assert shown["alice"].last_end is not None
    assert shown["alice"].last_end.reason == "completed"
    assert any("no such model" in notice for notice in core.notices(lead))

    core.sessions.select_model(bob, LARGE)
    core.act(lead, "send_message", target="bob", message="try again")
    again = core.agent(bob)
    assert again.claim.model == LARGE
    again.finish("now it works")
    assert core.member(lead, "bob")["model"] == LARGE
