"""Requests in and responses out: strict JSON bodies with a limit, compact JSON responses, one error shape."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError

from team.model.claims import ErrorResponse
from team.model.errors import RequestInvalid, TeamError, error_json
from team.model.events import first_fault
from team.model.values import decode_json

_M = TypeVar("_M", bound=BaseModel)

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "The error says what to do next; nothing was changed."}
}
MAX_BODY_BYTES = 1_048_576
MAX_WORKER_BODY_BYTES = 33_554_432


async def read_body(request: Request, limit: int) -> bytes:
    """The body, refused as soon as it grows over ``limit`` bytes. Raises RequestInvalid."""
    chunks, size = list[bytes](), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise RequestInvalid(f"The request body is over {limit} bytes.")
        chunks.append(chunk)
    return b"".join(chunks)


def json_body(model: type[_M], limit: int = MAX_BODY_BYTES) -> Callable[[Request], Awaitable[_M]]:
    """A dependency that parses the body strictly. Raises RequestInvalid that names the first fault."""

    async def parse(request: Request) -> _M:
        body = await read_body(request, limit) or b"{}"
        try:
            decode_json(body)
            return model.model_validate_json(body)
        except ValidationError as error:
            raise RequestInvalid(f"The request body is not valid: {first_fault(error)}.") from error
        except ValueError as error:
            raise RequestInvalid(f"The request body is not usable JSON: {error}.") from error

    return parse


def body_docs(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI part that describes a body which ``json_body`` reads."""
    schema = model.model_json_schema(by_alias=True)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def reply(view: BaseModel, status: int = 200) -> Response:
    """A view as compact camelCase JSON; absent fields are left out."""
    content = view.model_dump_json(by_alias=True, exclude_none=True)
    return Response(content, status_code=status, media_type="application/json")


def reply_error(error: TeamError) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None  # noqa: PLR2004 -- HTTP
    content = error_json(error.code, error.message)
    return Response(content, status_code=error.status, media_type="application/json", headers=headers)
