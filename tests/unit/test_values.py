"""What JSON and text may enter the log."""

import json
import math

import pytest
from pydantic import ValidationError

from team.model.content import OpaqueBlock, TextBlock, ToolCallBlock
from team.model.errors import LogDamaged
from team.model.events import AssistantMessage, StepStarted, UserMessage, decode_event, decode_stored
from team.model.ids import MAX_SAFE_INTEGER, MessageId, SessionId, TurnId, task_id, task_number
from team.model.snapshots import HumanSource, MemberSnapshot, TaskSnapshot, is_member_name
from team.model.values import MAX_JSON_DEPTH, clean_text, decode_json, hygiene_fault, text_fault


def nested(depth: int, *, as_object: bool = False) -> object:
    """``depth`` containers around a number: the number is at ``depth`` + 1."""
    value: object = 1
    for _ in range(depth):
        value = {"k": value} if as_object else [value]
    return value


class TestHygiene:
    @pytest.mark.parametrize(
        ("value", "fault"),
        [
            ("a\x00b", "NUL"),
            ({"a\x00": 1}, "NUL"),
            ("x\udc97", "surrogate"),
            ({"\ud83d": 1}, "surrogate"),
            ([{"deep": ["\ud800"]}], "surrogate"),
            (math.nan, "finite"),
            (-math.inf, "finite"),
            (MAX_SAFE_INTEGER + 1, "2^53-1"),
            (-MAX_SAFE_INTEGER - 1, "2^53-1"),
            (nested(MAX_JSON_DEPTH), "nested"),
            (nested(MAX_JSON_DEPTH, as_object=True), "nested"),
            (nested(100_000), "nested"),
            (b"bytes", "bytes"),
            ({1, 2}, "set"),
        ],
    )
    def test_a_value_that_json_or_sql_cannot_keep_is_refused_with_its_fault(self, value: object, fault: str) -> None:
        assert fault in (hygiene_fault(value) or "")

    @pytest.mark.parametrize(
        "value",
        [
            None,
            True,
            MAX_SAFE_INTEGER,
            -MAX_SAFE_INTEGER,
            -0.5,
            "\N{GRINNING FACE} \u202e\ufeff\x1b[31m",
            nested(MAX_JSON_DEPTH - 1),
            nested(MAX_JSON_DEPTH - 1, as_object=True),
            {"__proto__": {"isAdmin": True}, "constructor": {"prototype": {"x": 1}}, "toString": [None]},
        ],
    )
    def test_everything_else_is_kept(self, value: object) -> None:
        assert hygiene_fault(value) is None
        assert decode_json(json.dumps(value)) == value

    @pytest.mark.parametrize(
        "text",
        [
            "NaN",
            "[Infinity]",
            "-Infinity",
            "1e999",
            "9007199254740992",
            "9" * 5_000,
            '"\\u0000"',
            '{"\\u0000": 1}',
            '"\\ud83d"',
            "[" * 65 + "]" * 65,
            "[" * 200_000,
            "",
            "{",
            "\ufeff{}",
            "[1] trailing",
            '{"a": 1, "a": 1}',
            '[{"deep": {"k": [], "\\u006b": 2}}]',
        ],
    )
    def test_decoding_refuses_what_strict_json_or_the_log_does_not_know(self, text: str) -> None:
        with pytest.raises(ValueError):
            decode_json(text)

    def test_decoding_bytes_that_are_not_utf_8_is_refused(self) -> None:
        with pytest.raises(ValueError):
            decode_json(b'"\xff\xfe\xfa"')

    def test_a_key_that_stands_twice_is_named(self) -> None:
        with pytest.raises(ValueError, match="the key '__proto__' stands twice in one object"):
            decode_json('{"b": {"__proto__": 1, "c": 2, "__proto__": 3}, "c": 0}')
        assert decode_json('[{"a": 1}, {"a": {"a": 2}}]') == [{"a": 1}, {"a": {"a": 2}}]

    def test_an_escaped_surrogate_pair_is_one_character(self) -> None:
        assert decode_json('"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


class TestCleaning:
    @pytest.mark.parametrize(
        ("raw", "clean"),
        [
            ("plain", "plain"),
            ("a\x00b", "a\N{SYMBOL FOR NULL}b"),
            ("x\udc97y", "x\N{REPLACEMENT CHARACTER}y"),
            ("\ud83d", "\N{REPLACEMENT CHARACTER}"),
            ("\ud83d" + "\ude00", "\N{GRINNING FACE}"),
            ("\N{GRINNING FACE}\x00", "\N{GRINNING FACE}\N{SYMBOL FOR NULL}"),
        ],
    )
    def test_tool_output_becomes_storable_and_keeps_everything_else(self, raw: str, clean: str) -> None:
        assert clean_text(raw) == clean
        assert text_fault(clean_text(raw)) is None


class TestOpaqueContent:
    def test_unknown_blocks_keep_every_key_and_byte_through_the_log(self) -> None:
        body = (
            '{"type":"acme/widget","__proto__":{"isAdmin":true},"__class__":"x","constructor":null,'
            '"toString":[1,1.0,-0.0,1e+22,"\\u2028\N{GRINNING FACE}"],"nested":{"null":null,"":{}}}'
        )
        message = UserMessage.model_validate_json(
            f'{{"messageId":"m","content":[{body},{{"type":"text","text":"t"}}],"source":{{"kind":"human"}}}}'
        )
        stored = message.to_json()
        again = decode_stored("user/message", stored)
        assert isinstance(again, UserMessage)
        block = again.content[0]
        assert isinstance(block, OpaqueBlock)
        assert block.root == json.loads(body)
        assert list(block.root) == list(json.loads(body))
        assert again.to_json() == stored
        assert json.dumps(block.root) == json.dumps(json.loads(body))

    @pytest.mark.parametrize("block", [{}, {"type": 1}, {"type": None}, {"text": "no type"}, "text", 3, None])
    def test_a_block_without_a_text_type_is_refused(self, block: object) -> None:
        body = {"messageId": "m", "content": [block], "source": {"kind": "human"}}
        with pytest.raises(LogDamaged):
            decode_event(1, "user/message", body)

    @pytest.mark.parametrize(
        "block",
        [
            {"type": "text"},
            {"type": "text", "text": 1},
            {"type": "text", "text": "x", "extra": 1},
            {"type": "tool-call", "callId": "c", "name": "n"},
            {"type": "reasoning", "text": None},
        ],
    )
    def test_a_declared_block_is_validated_strictly(self, block: object) -> None:
        body = {"messageId": "m", "content": [block], "source": {"kind": "human"}}
        with pytest.raises(LogDamaged):
            decode_event(1, "user/message", body)

    def test_a_calls_arguments_stay_the_models_own_text(self) -> None:
        arguments = '{ "b":1,\n"a" : "\\u00e9", "__proto__":{}}'
        call = ToolCallBlock(call_id="c", name="n", arguments=arguments)
        message = AssistantMessage(turn_id=TurnId("t"), step=1, model="m", content=(call,), finish_reason="tool-calls")
        again = decode_stored("assistant/message", message.to_json())
        assert isinstance(again, AssistantMessage)
        assert again.content == (call,)


class TestStrictness:
    @pytest.mark.parametrize("step", [True, 1.0, "1", 0, -1, MAX_SAFE_INTEGER + 1, None])
    def test_a_counter_in_a_log_is_an_integer_and_nothing_that_looks_like_one(self, step: object) -> None:
        with pytest.raises(LogDamaged, match="event 7"):
            decode_event(7, "step/start", {"turnId": "t", "step": step})
        with pytest.raises(ValidationError):
            StepStarted.model_validate({"turn_id": "t", "step": step})

    def test_an_unknown_key_in_a_log_is_refused(self) -> None:
        with pytest.raises(LogDamaged, match="event 7"):
            decode_event(7, "step/start", {"turnId": "t", "step": 1, "more": 1})

    def test_a_value_is_immutable_and_absent_fields_leave_no_trace(self) -> None:
        source = HumanSource()
        assert source.to_json() == '{"kind":"human"}'
        with pytest.raises(ValidationError):
            source.actor = "x"  # pyright: ignore[reportAttributeAccessIssue] -- this is what must fail

    def test_wire_names_are_camel_case(self) -> None:
        message = UserMessage(message_id=MessageId("m"), content=(TextBlock(text="t"),), source=HumanSource())
        assert json.loads(message.to_json()).keys() == {"messageId", "content", "source"}


class TestNames:
    @pytest.mark.parametrize("name", ["a", "bob", "bob-2", "2-b", "a" * 64, "lead-2", "unowned-2", "to-string"])
    def test_lowercase_kebab_case_up_to_64_characters_is_a_name(self, name: str) -> None:
        assert is_member_name(name)

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "bob\n",
            "\nbob",
            " bob",
            "bob ",
            "Bob",
            "b_b",
            "b.b",
            "-bob",
            "bob-",
            "b--b",
            "bob\u200b",
            "bob\u200d",
            "\u0430lice",  # Cyrillic a
            "b\u00f6b",
            "\u0661",  # an Arabic digit
            "lead",
            "unowned",
            "a" * 65,
            "bob,carol",
            "*",
            "@bob",
            "__proto__",
        ],
    )
    def test_anything_else_is_none(self, name: str) -> None:
        assert not is_member_name(name)
        with pytest.raises(ValidationError):
            MemberSnapshot(
                id=SessionId("s"), name=name, description="d", provider="fresh", context="fresh", phase="active"
            )


class TestTaskIds:
    @pytest.mark.parametrize("number", [1, 9, 10, MAX_SAFE_INTEGER])
    def test_a_task_id_and_its_number_are_one_to_one(self, number: int) -> None:
        assert task_number(task_id(number)) == number

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "1",
            "task-",
            "task-0",
            "task-01",
            "task--1",
            "task-+1",
            "task-1 ",
            " task-1",
            "task-1\n",
            "TASK-1",
            "task-1.0",
            "task-1e3",
            "task-\u0661",
            "task-\u00b2",
            "task-task-1",
            f"task-{MAX_SAFE_INTEGER + 1}",
            "task-" + "9" * 5_000,
        ],
    )
    def test_a_task_id_has_only_one_spelling(self, text: str) -> None:
        assert task_number(text) is None
        with pytest.raises(ValidationError):
            TaskSnapshot.model_validate(
                {"id": text, "revision": 1, "subject": "s", "description": "d", "status": "pending"}
            )
