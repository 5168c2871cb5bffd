"""From a Session's visible history to the messages of a request."""

import json

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from team.model.content import OpaqueBlock, ReasoningBlock, TextBlock, ToolCallBlock
from team.model.events import Usage
from team.model.history import AssistantEntry, UserEntry
from team.model.snapshots import HumanSource
from tests.support.sessions import SYSTEM, SessionLog, load
from workers.models import Answer, ModelFailure
from workers.models.request import (
    SUMMARY_HEADING,
    Dialect,
    dumped,
    messages_of,
    parameters_of,
    replayable_arguments,
)

CHAT = Dialect(family="openai-chat", marks_errors=False)
ANTHROPIC = Dialect(family="anthropic", marks_errors=True)


def answer(*calls: str, text: str = "", model: str = "openai-chat:m", detail: str | None = None) -> Answer:
    blocks = [ToolCallBlock(call_id=call, name="read", arguments="{}") for call in calls]
    said = (TextBlock(text=text),) if text else ()
    return Answer(model=model, content=(*said, *blocks), usage=Usage(), finish_reason="stop", provider_detail=detail)


def shape(messages: list[ModelMessage]) -> list[list[object]]:
    """The parts of each message as plain values."""
    shapes: list[list[object]] = []
    for message in messages:
        parts: list[object] = []
        for part in message.parts:
            match part:
                case SystemPromptPart():
                    parts.append(("system", part.content))
                case UserPromptPart():
                    parts.append(("user", part.content))
                case ToolReturnPart():
                    parts.append(("result", part.tool_name, part.tool_call_id, part.content, part.outcome))
                case TextPart():
                    parts.append(("text", part.content))
                case ToolCallPart():
                    parts.append(("call", part.tool_name, part.tool_call_id, part.args))
                case _:
                    parts.append(type(part).__name__)
        shapes.append(parts)
    return shapes


def test_the_system_prompt_is_the_first_message_and_user_blocks_stay_apart() -> None:
    log = SessionLog()
    log.user("one")
    log.message("alice", "two")
    messages = shape(messages_of(log.conversation, CHAT))
    assert messages[:2] == [[("system", SYSTEM)], [("user", "one")]]
    (part,) = messages_of(log.conversation, CHAT)[2].parts
    assert isinstance(part, UserPromptPart)
    frame, text = part.content
    assert text == "two"
    assert "from alice" in str(frame)


def test_entries_that_are_included_already_are_left_out() -> None:
    log = SessionLog()
    log.user("one")
    log.conversation.extend(log.entries)
    log.conversation.extend(log.entries[-1:])
    assert log.conversation.seq == log.seq == 2
    assert len(messages_of(log.conversation, CHAT)) == 2


def test_call_ids_of_all_answers_are_known() -> None:
    log = SessionLog()
    log.results(log.answer(answer("a", "b")), "", "")
    log.compact("so far")
    log.results(log.answer(answer("c")), "")
    assert log.conversation.call_ids == {"a", "b", "c"}
    log.conversation.call_ids.clear()
    assert log.conversation.call_ids == {"a", "b", "c"}


def test_results_follow_their_answer_by_index_and_messages_follow_the_results() -> None:
    log = SessionLog()
    log.user("go")
    calls = log.answer(answer("a", "b", text="Reading."))
    log.result(calls[1], 1, "second")
    log.user("by the way")
    log.result(calls[0], 0, "first")
    assert shape(messages_of(log.conversation, CHAT))[2:] == [
        [("text", "Reading."), ("call", "read", "a", "{}"), ("call", "read", "b", "{}")],
        [("result", "read", "a", "first", "success"), ("result", "read", "b", "second", "success")],
        [("user", "by the way")],
    ]


@pytest.mark.parametrize(
    ("content", "chat"),
    [
        ('{"error":{"code":"X"}}', "success"),
        ('{"error": "text"}', "success"),
        ("plain text", "failed"),
        ('{"result": 1}', "failed"),
        ('{"error"', "failed"),
        ('["error"]', "failed"),
        ("{" * 100_000, "failed"),
    ],
)
def test_a_failed_result_is_marked_unless_its_text_says_so_itself(content: str, chat: str) -> None:
    for outcome in ("error", "unknown"):
        log = SessionLog()
        (call,) = log.answer(answer("a"))
        log.result(call, 0, content, outcome)
        for dialect, expected in ((CHAT, chat), (ANTHROPIC, "failed")):
            (part,) = messages_of(log.conversation, dialect)[-1].parts
            assert isinstance(part, ToolReturnPart)
            assert (part.content, part.outcome) == (content, expected)


def test_a_call_without_a_result_fails_before_any_provider_sees_it() -> None:
    """L03: every later request would be refused; the reason names the call."""
    log = SessionLog()
    calls = log.answer(answer("a", "b"))
    log.result(calls[0], 0, "fine")
    with pytest.raises(ModelFailure, match="'b'") as caught:
        messages_of(log.conversation, CHAT)
    assert not caught.value.retryable
    log.result(calls[1], 1, "late")
    assert len(messages_of(log.conversation, CHAT)) == 3


def test_more_entries_only_ever_add_messages_and_decode_nothing_again() -> None:
    log = SessionLog()
    log.user("go")
    earlier = messages_of(log.conversation, CHAT)
    for number in range(5):
        log.results(log.answer(answer(f"call-{number}")), f"result {number}")
        later = messages_of(log.conversation, CHAT)
        assert shape(later)[: len(earlier)] == shape(earlier)
        kept = [message for message in earlier if isinstance(message, ModelResponse)]
        assert [message for message in later if isinstance(message, ModelResponse)][: len(kept)] == kept
        assert all(any(old is new for new in later) for old in kept)
        earlier = later
    assert shape(messages_of(load(log.dump()), CHAT)) == shape(earlier)


def test_a_compaction_stands_for_everything_before_it_also_between_call_and_result() -> None:
    log = SessionLog()
    log.user("old")
    messages_of(log.conversation, CHAT)
    calls = log.answer(answer("a"))
    log.compact("The summary.")
    log.result(calls[0], 0, "result of a replaced call")
    log.user("new")
    assert shape(messages_of(log.conversation, CHAT)) == [
        [("system", SYSTEM)],
        [("user", f"{SUMMARY_HEADING}\n\nThe summary.")],
        [("user", "new")],
    ]


def test_the_newest_header_supplies_system_prompt_and_tools() -> None:
    log = SessionLog(system="old")
    log.user("go")
    log.header("new", ({"name": "write", "description": "W", "parameters": {"type": "object"}},))
    assert shape(messages_of(log.conversation, CHAT))[0] == [("system", "new")]
    (tool,) = parameters_of(log.conversation).function_tools
    assert (tool.name, tool.description, tool.strict) == ("write", "W", False)


def test_opaque_and_empty_blocks_are_not_sent() -> None:
    log = SessionLog()
    image = OpaqueBlock({"type": "image", "__proto__": {"x": 1}})
    content = (image, TextBlock(text=""), TextBlock(text="seen"))
    log.add(UserEntry(seq=2, content=content, source=HumanSource()))
    log.add(UserEntry(seq=3, content=(image,), source=HumanSource()))
    assert shape(messages_of(log.conversation, CHAT))[1:] == [[("user", "seen")]]


def detail_of(*parts: TextPart | ThinkingPart | ToolCallPart) -> str:
    return dumped(ModelResponse(parts=list(parts), provider_name="p", provider_details={"x": [1]}))


def test_provider_detail_is_replayed_with_the_call_ids_of_the_log() -> None:
    log = SessionLog()
    detail = detail_of(
        ThinkingPart(content="hm", signature="s"),
        ToolCallPart("read", '{"a":1}', tool_call_id="same"),
        ToolCallPart("read", '{"a":2}', tool_call_id="same"),
    )
    calls = log.answer(answer("same", "same", detail=detail))
    log.results(calls, "", "")
    response = messages_of(log.conversation, CHAT)[1]
    assert isinstance(response, ModelResponse)
    assert response.provider_details == {"x": [1]}
    ids = [part.tool_call_id for part in response.parts if isinstance(part, ToolCallPart)]
    assert ids == ["same", "same-again"] == [call.call_id for call in calls]
    assert isinstance(response.parts[0], ThinkingPart)
    assert response.parts[0].signature == "s"


@pytest.mark.parametrize(
    "detail",
    [
        "",
        "{}",
        "[]",
        "not json",
        '{"script":1,"member":"lead","state":"a"}',
        ModelMessagesTypeAdapter.dump_json([ModelRequest(parts=[UserPromptPart(content="x")])]).decode(),
        detail_of(TextPart(content="other text")),
    ],
)
def test_a_detail_that_does_not_fit_is_rebuilt_from_the_content(detail: str) -> None:
    log = SessionLog()
    log.results(log.answer(answer("a", text="Said.", detail=detail)), "r")
    assert shape(messages_of(log.conversation, CHAT))[1] == [("text", "Said."), ("call", "read", "a", "{}")]


def test_another_familys_answer_is_rebuilt_without_reasoning() -> None:
    log = SessionLog()
    detail = detail_of(ThinkingPart(content="hm", signature="s"), TextPart(content="Said."))
    content = (ReasoningBlock(text="hm"), TextBlock(text="Said."))
    log.add(AssistantEntry(seq=2, model="anthropic:x", content=content, provider_detail=detail))
    assert shape(messages_of(log.conversation, CHAT))[1] == [("text", "Said.")]
    assert shape(messages_of(log.conversation, ANTHROPIC))[1] == ["ThinkingPart", ("text", "Said.")]


@pytest.mark.parametrize(
    "text",
    ["[1]", "1", '"x"', "null", "{", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud83d"}', '{"a": "\\u0000"}', "[" * 9999],
)
def test_arguments_that_are_no_sound_object_are_resent_inside_one(text: str) -> None:
    """S06: one bad call must not make a provider refuse every later request."""
    assert replayable_arguments(text) == {"INVALID_JSON": text}
    json.dumps(replayable_arguments(text)).encode()


@pytest.mark.parametrize("text", ["{}", '{"a": 1}', '{"b":2,"a":{"c":[true,null]}}', '{"a": "\\ud83d\\ude00"}'])
def test_sound_arguments_are_resent_as_they_are(text: str) -> None:
    assert replayable_arguments(text) == text


@pytest.mark.parametrize("text", ["", "  "])
def test_missing_arguments_are_an_empty_object(text: str) -> None:
    assert replayable_arguments(text) == {}
