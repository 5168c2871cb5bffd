"""Content blocks of messages. Declared types are strict; unknown types keep their decoded JSON untouched."""

from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, RootModel, Tag, model_validator

from team.model.values import JsonObject, Value


class TextBlock(Value):
    type: Literal["text"] = "text"
    text: str


class ReasoningBlock(Value):
    """Text that a model showed of its reasoning; the provider's own form lives in ``provider_detail``."""

    type: Literal["reasoning"] = "reasoning"
    text: str


class ToolCallBlock(Value):
    """One call that a model asked for; ``arguments`` is the model's own JSON text, unparsed."""

    type: Literal["tool-call"] = "tool-call"
    call_id: str
    name: str
    arguments: str


class OpaqueBlock(RootModel[JsonObject]):
    """A block of a type that this version does not declare: any key, kept as decoded."""

    @model_validator(mode="after")
    def _is_typed(self) -> "OpaqueBlock":
        if not isinstance(self.root.get("type"), str):
            raise ValueError("a content block needs a text 'type'")
        return self


_DECLARED = {"text", "reasoning", "tool-call"}


def _tag(block: object) -> str:
    if isinstance(block, OpaqueBlock):
        return "opaque"
    kind: Any = cast("dict[str, Any]", block).get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return kind if kind in _DECLARED else "opaque"


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ReasoningBlock, Tag("reasoning")]
    | Annotated[ToolCallBlock, Tag("tool-call")]
    | Annotated[OpaqueBlock, Tag("opaque")],
    Discriminator(_tag),
]


def text_of(blocks: tuple[ContentBlock, ...]) -> str:
    """The text blocks of a message, joined by blank lines."""
    return "\n\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def text_block(text: str) -> tuple[ContentBlock, ...]:
    return (TextBlock(text=text),)
