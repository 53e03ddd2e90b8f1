"""The client without I/O: a flow is a generator that yields what it wants done and is sent what came of it.

Everything the client knows is written once, as flows. `runners` carries them out, blocking or asynchronously.
An exception that strikes while something is being done (Ctrl-C, a cancelled task) is thrown into the flow, which may
still yield what must be done before it lets go.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Clock = Callable[[], float]


@dataclass(frozen=True)
class Send:
    """One HTTP request, with JSON or bytes. `timeout` is in seconds, for all of it."""

    method: str
    path: str
    timeout: float
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Pause:
    """Wait, in seconds."""

    seconds: float


@dataclass(frozen=True)
class Reply:
    """An answer. `body` is parsed JSON, or the text if it was none."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the call was accepted."""
        return 200 <= self.status < 300


@dataclass(frozen=True)
class Silence:
    """No answer. Whether the request was carried out is unknown."""

    why: str


Answer = Reply | Silence
T = TypeVar("T")
Flow = Generator[Send | Pause, Answer | None, T]


def send(request: Send) -> Flow[Answer]:
    """Do one request."""
    answer = yield request
    if answer is None:
        raise TypeError("a Send was not answered")
    return answer
