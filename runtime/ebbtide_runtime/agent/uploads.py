"""The agent's routes for streamed weights (`ebbtide_api.upload`). They translate, and decide nothing."""

from __future__ import annotations

import re

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.upload import CHUNK, CRC32C, FILE_NAME, PublishRequest, Upload, UploadRequest
from ebbtide_api.verbs import EPOCH
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from .agent import Agent
from .auth import Callers
from .http import MAX_BODY, parse_body, parse_leader, parse_number
from .steps.common import fresh_measurement, room

_FILES = 2 << 20


class UploadRoutes:
    """The handlers. Every call but a DELETE carries the epoch, which is kept: an older holder's bytes are refused."""

    def __init__(self, agent: Agent, callers: Callers) -> None:
        self._agent, self._callers = agent, callers

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        version = "/v1/weights/{version}"
        app.add_api_route(version, self.open, methods=["POST"])
        app.add_api_route(version, self.drop, methods=["DELETE"])
        app.add_api_route(f"{version}/publish", self.publish, methods=["POST"])
        app.add_api_route(version + "/{file}", self.write, methods=["PUT"])

    async def open(self, request: Request) -> Response:
        """Expect a version."""
        version, epoch = await self._enter(request)
        asked = parse_body(UploadRequest, await read(request, _FILES), _FILES)
        return _answer(await self._agent.receiver.open(version, asked, epoch, self._room))

    async def _room(self) -> int:
        member = self._agent.member
        return room(member, (await fresh_measurement(member)).host_bytes)

    async def write(self, request: Request) -> Response:
        """Take bytes of a file."""
        version, _ = await self._enter(request)
        file = request.path_params["file"]
        if re.fullmatch(FILE_NAME, file) is None:
            raise EbbtideError(ErrorCode.INVALID_REQUEST, f"{file!r} is no name of a file", field="file")
        offset = parse_number(request.query_params.get("offset", ""), "offset")
        crc = parse_number(request.headers.get(CRC32C, ""), CRC32C)
        data = await read(request, CHUNK)
        return _answer(await self._agent.receiver.write(version, file, offset, data, crc))

    async def publish(self, request: Request) -> Response:
        """Give a version its name."""
        version, _ = await self._enter(request)
        asked = parse_body(PublishRequest, await read(request, MAX_BODY))
        return _answer(await self._agent.receiver.publish(version, asked))

    async def drop(self, request: Request) -> Response:
        """Forget a version."""
        self._callers.check(request.headers.get("authorization"))
        await self._agent.executor.follow(parse_leader(request.headers))
        if EPOCH in request.headers:
            await self._enter(request)
        through = request.query_params.get("through") == "true"
        await self._agent.receiver.drop(_version(request), through=through)
        return JSONResponse({})

    async def _enter(self, request: Request) -> tuple[int, int]:
        self._callers.check(request.headers.get("authorization"))
        version, epoch = _version(request), parse_number(request.headers.get(EPOCH, ""), EPOCH)
        await self._agent.executor.fence(epoch, parse_leader(request.headers))
        return version, epoch


def _version(request: Request) -> int:
    return parse_number(request.path_params["version"], "version")


def _answer(upload: Upload) -> Response:
    return JSONResponse(upload.wire())


async def read(request: Request, most: int) -> bytes:
    """Return a request's body. Raises INVALID_REQUEST as soon as it is larger than `most` bytes."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > most:
            raise EbbtideError(ErrorCode.INVALID_REQUEST, f"the body is larger than {most} bytes", limit=most)
    return bytes(data)
