"""Drives an ASGI application by hand: one scope, what it is sent, and what it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What an application sent."""

    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> int:
        starts = [each for each in self.messages if each["type"] == "http.response.start"]
        assert len(starts) == 1, self.messages
        return int(starts[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        start = next(each for each in self.messages if each["type"] == "http.response.start")
        return {name.decode(): value.decode() for name, value in start["headers"]}

    @property
    def body(self) -> Any:
        return json.loads(b"".join(each.get("body", b"") for each in self.messages if each["type"].endswith("body")))


def http(
    method: str = "POST", path: str = "/v1/completions", headers: Iterable[tuple[str, str]] = (), **extra: Any
) -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    return {"type": "http", "method": method, "path": path, "headers": raw, **extra}


async def call(application: Any, scope: dict[str, Any]) -> Answer:
    answer = Answer()

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        answer.messages.append(dict(message))

    await application(scope, receive, send)
    return answer


def ask(application: Any, scope: dict[str, Any]) -> Answer:
    return asyncio.run(call(application, scope))
