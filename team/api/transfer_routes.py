"""Session trees as lines of JSON, out and in."""

import asyncio
import hashlib
import io
import tempfile
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from team.api.bodies import ERRORS, reply
from team.api.idempotency import IdempotencyKey, once_of
from team.model.errors import RequestInvalid
from team.service.transfers import ImportedView, TransferService

MAX_IMPORT_BYTES: Final = 1_073_741_824


def transfer_router(transfers: TransferService) -> APIRouter:
    """Export and import."""
    router = APIRouter(prefix="/v1", responses=ERRORS)

    @router.get(
        "/sessions/{session_id}/log",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/x-ndjson": {}}}},
    )
    def export_log(session_id: str) -> StreamingResponse:
        """The log of a Session and its descendants as lines of JSON: each header, then its events."""
        return StreamingResponse(transfers.export(session_id), media_type="application/x-ndjson")

    @router.post(
        "/import",
        responses={201: {"model": ImportedView}},
        openapi_extra={"requestBody": {"required": True, "content": {"application/x-ndjson": {}}}},
        status_code=201,
    )
    async def import_log(request: Request, key: IdempotencyKey) -> Response:
        """Take Session trees that were exported; all of the file or nothing. Open turns go on here."""
        with tempfile.TemporaryFile() as spool:
            size, digest = 0, hashlib.sha256()
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_IMPORT_BYTES:
                    raise RequestInvalid(f"The file is over {MAX_IMPORT_BYTES} bytes; import its trees one by one.")
                digest.update(chunk)
                await asyncio.to_thread(spool.write, chunk)
            spool.seek(0)
            lines = io.TextIOWrapper(spool, encoding="utf-8", newline="\n")
            try:
                once = once_of(key, request, digest.digest())
                return reply(await asyncio.to_thread(transfers.import_, lines, once), 201)
            except UnicodeDecodeError as error:
                raise RequestInvalid(f"The file is not UTF-8 at byte {error.start}.") from error
            finally:
                lines.detach()

    return router
