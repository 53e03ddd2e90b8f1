"""An HTTP/1.1 server of a page, so that a fake can refuse, stall, and break connections as it likes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any


class BrokenError(Exception):
    """Break the connection instead of answering."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A JSON answer, or `chunks`: lines that are sent as they come."""

    status: int
    body: Any = None
    chunks: AsyncIterator[str] | None = None
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Awaitable[Answer]]


class SmallServer:
    """Listens while it is open; every connection carries one request."""

    def __init__(self, port: int, handler: Handler) -> None:
        self._port = port
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, reuse_address=True)

    async def stop(self) -> None:
        """Stop listening, and break what is open, as a process that dies does."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for _ in range(10):
            await asyncio.sleep(0)  # a connection that was just accepted becomes a task first
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._serve(reader, writer)
        except (BrokenError, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.discard(task)
            writer.close()
            with contextlib.suppress(Exception):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await _read(reader)
        answer = await self._handler(request)
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
        head = f"HTTP/1.1 {answer.status} .\r\nConnection: close\r\nContent-Type: application/json\r\n{extra}"
        if answer.chunks is None:
            data = json.dumps(answer.body).encode()
            writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        else:
            writer.write(f"{head}\r\n".encode())
            async for line in answer.chunks:
                writer.write(line.encode())
                await writer.drain()
        await writer.drain()


async def break_all() -> None:
    """Close what is open in the running loop, before it ends: a task that is cancelled as it connects leaves that."""
    transports: dict[int, asyncio.Transport] = vars(asyncio.get_running_loop()).get("_transports", {})
    for transport in list(transports.values()):
        transport.abort()
    for _ in range(3):
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, json.loads(data) if data else {})
