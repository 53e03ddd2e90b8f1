"""Routes for streamed weights (`ebbtide_api.upload`): from the lease's holder to the agent of every member."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.upload import CHUNK, CRC32C, FILE_NAME, PublishRequest, Upload, UploadRequest
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import JSONResponse

from ebbtide_operator import uploads
from ebbtide_operator.drive.agents import Piece

from .groups import operator_of
from .headers import AskedHeaders

router = APIRouter(prefix="/v1/groups/{group}/weights/{version}")
AT_ONCE = 4
"""Pieces that are held in memory at any time, whoever sends them."""
SLOWEST = 60.0
"""Seconds in which a piece must have come: a sender that hangs must not keep the others waiting."""
_PIECE = re.compile(r"^/v1/groups/[^/]+/weights/[0-9]+/[^/]+$")
Version = Annotated[int, Path(ge=1, le=2**53)]


def limit_of(method: str, path: str, usual: int) -> int:
    """Return the most bytes that a request may have."""
    return CHUNK if method == "PUT" and _PIECE.match(path) else usual


@router.post("")
async def begin(
    request: Request, group: str, version: Version, body: UploadRequest, asked: AskedHeaders
) -> JSONResponse:
    """Let every member expect a version: 507 before a byte is sent, when one has no room for it."""
    return _answer(await uploads.begin(operator_of(request), group, version, body, asked))


@router.post("/publish")
async def publish(
    request: Request, group: str, version: Version, body: PublishRequest, asked: AskedHeaders
) -> JSONResponse:
    """Let the version have its name with every member."""
    return _answer(await uploads.publish(operator_of(request), group, version, body, asked))


@router.put("/{file}")
async def send(
    request: Request,
    group: str,
    version: Version,
    file: Annotated[str, Path(pattern=FILE_NAME)],
    offset: Annotated[int, Query(ge=0, le=2**53)],
    asked: AskedHeaders,
) -> JSONResponse:
    """Give bytes of a file to every member."""
    crc = _crc(request)
    async with request.app.state.pieces:
        # Read before it is refused: a sender that is cut off while it sends does not see why.
        piece = Piece(file, offset, await _read(request), crc)
        return _answer(await uploads.send(operator_of(request), group, version, piece, asked))


@router.delete("")
async def drop(request: Request, group: str, version: Version, asked: AskedHeaders) -> JSONResponse:
    """Let the members forget a version."""
    await uploads.drop(operator_of(request), group, version, asked)
    return JSONResponse({})


async def _read(request: Request) -> bytes:
    try:
        async with asyncio.timeout(SLOWEST):
            return await request.body()
    except TimeoutError:
        message = f"the bytes did not come within {SLOWEST:g} s"
        raise EbbtideError(ErrorCode.PHASE_DEADLINE, message, next_action="Send them again.") from None


def _crc(request: Request) -> int:
    text = request.headers.get(CRC32C, "")
    if not text.isdecimal() or int(text) >= 2**32:
        raise EbbtideError(ErrorCode.INVALID_REQUEST, f"the header {CRC32C} must be a CRC32C", field=CRC32C)
    return int(text)


def _answer(upload: Upload) -> JSONResponse:
    return JSONResponse(upload.wire())
