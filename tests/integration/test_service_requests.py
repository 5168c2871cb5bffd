"""Requests that are repeated with their key happen once."""

from team.model.ids import SessionId
from team.service.callers import Caller, Once
from team.service.housekeeping import Housekeeping
from tests.support.core import Core, codes, together


class TestIdempotentRequests:
    def once(self, key: str = "k", request: str = "hash") -> Once:
        return Once("me", key, request)

    def spawn(self, core: Core, lead: SessionId, once: Once) -> object:
        caller = Caller(lead, actor="me", once=once)
        return core.teams.spawn(caller, name="bob", description="d", prompt="begin")

    def test_a_repeated_creation_returns_its_first_response(self, core: Core) -> None:
        lead = core.lead()
        first = self.spawn(core, lead, self.once())
        before = core.count()
        assert self.spawn(core, lead, self.once()) == first
        assert core.count() == before

    def test_a_creation_repeated_at_once_happens_once(self, core: Core) -> None:
        for _ in range(4):
            lead = core.lead()
            once = self.once(key=lead)
            results = together(*([lambda s=lead, o=once: self.spawn(core, s, o)] * 3))
            assert codes(results) == ["ok"] * 3
            assert core.types(lead).count("team/member") == 2

    def test_a_request_repeated_at_once_happens_once(self, core: Core) -> None:
        lead = core.lead()
        core.idle(lead, "bob")
        for number in range(6):
            once = self.once(key=str(number))
            caller = Caller(lead, actor="me", once=once)
            before = core.types(core.sessions.member_session(lead, "bob")).count("agent/inbox/inserted")
            sent = together(*([lambda c=caller: core.teams.send(c, target="bob", message="m")] * 3))
            assert codes(sent) == ["ok"] * 3
            assert len({view.message_id for view in sent}) == 1
            after = core.types(core.sessions.member_session(lead, "bob")).count("agent/inbox/inserted")
            assert after == before + 1

    def test_a_session_created_twice_at_once_is_one(self, core: Core) -> None:
        def create() -> str:
            return core.sessions.create(
                cwd=".", profile="team", model=None, prompt="p", actor="me", once=self.once("new")
            ).id

        ids = together(*([create] * 4))
        assert codes(ids) == ["ok"] * 4
        assert len({*ids}) == 1
        assert len(core.sessions.page(None, 100)[0]) == 1

    def test_a_key_means_one_request(self, core: Core) -> None:
        lead = core.lead()
        once = self.once()
        first = core.sessions.prompt(lead, text="a", delivery="turn", actor="me", once=once)
        assert core.sessions.prompt(lead, text="a", delivery="turn", actor="me", once=once) == first
        other = Once("me", "k", "another hash")
        refused = together(lambda: core.sessions.prompt(lead, text="b", delivery="turn", actor="me", once=other))
        assert codes(refused) == ["IDEMPOTENCY_CONFLICT"]
        somebody = Once("you", "k", "another hash")
        assert core.sessions.prompt(lead, text="b", delivery="turn", actor="you", once=somebody) != first
        assert len([t for t in core.types(lead) if t == "agent/inbox/inserted"]) == 2

    def test_old_keys_are_forgotten_on_request(self, core: Core) -> None:
        lead = core.lead()
        once = self.once()
        core.sessions.prompt(lead, text="a", delivery="turn", actor="me", once=once)
        Housekeeping(core.store).tidy({"requests": 3_600})
        assert core.sessions.prompt(lead, text="a", delivery="turn", actor="me", once=once)
        assert core.head(lead).pending == 1
        Housekeeping(core.store).tidy({"requests": -1})
        core.sessions.prompt(lead, text="a", delivery="turn", actor="me", once=once)
        assert core.head(lead).pending == 2
