"""Requests for an engine go to a member that takes them now; the client's own headers travel, our token does not."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator

import httpx2
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import StateVector
from ebbtide_api.verbs import ServerState

from ..client.connection import Connection
from ..client.runners import options
from .holder import Holder

_OURS = re.compile(r"^/v1/(groups|servers|operations|apply|shutdown|enrol)(/|$|:)")
_ENGINES = re.compile(
    r"^/(v1|v2|cohere|inference)/|^/(tokenize|detokenize|score|rerank|classify|pooling|generative_scoring|version|load)$"
)
FRESH = 0.5
"""Seconds for which it is remembered who serves: a gate that was shut since then answers for itself."""
PROBE = 30.0
"""Seconds that an engine may take for one token."""


def is_for_engines(path: str) -> bool:
    """Whether a path is an engine's, and not the gateway's."""
    return bool(_ENGINES.match(path)) and not _OURS.match(path)


class Engines:
    """The members of one group, as a client of their data ports."""

    def __init__(self, connection: Connection, holder: Holder) -> None:
        self._holder = holder
        how = options(connection)
        # A trainer samples with as many requests at once as it likes: the engines queue them, and not we.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        timeout = httpx2.Timeout(None, connect=5)
        self._client = httpx2.Client(verify=how["verify"], trust_env=how["trust_env"], timeout=timeout, limits=limits)
        self._turns = itertools.count()
        self._lock = threading.Lock()
        self._known: tuple[float, list[ServerState]] = (0.0, [])

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(self, method: str, target: str, headers: dict[str, str], body: Iterator[bytes] | None) -> httpx2.Response:
        """Send a request to a member that serves, and return its answer unread. Raises ENGINE_ASLEEP, UNREACHABLE."""
        problem: httpx2.HTTPError | None = None
        for member in self._serving():
            request = self._client.build_request(method, f"{member.url}{target}", headers=headers, content=body)
            try:
                return self._client.send(request, stream=True)
            except httpx2.ConnectError as refused:
                # Nothing of the request was read yet: another member may have it.
                problem = refused
        message = f"no engine of group {self._holder.terms.group} answered ({problem})."
        raise EbbtideError(ErrorCode.UNREACHABLE, message) from problem

    def _serving(self) -> list[StateVector]:
        members = [member for server in self._servers() for member in server.members if member.url]
        # One that sleeps because nobody asked is woken by the request; its own gate holds it meanwhile.
        found = [one for one in members if one.admission] or [one for one in members if one.wakes]
        if not found:
            seen = {member.name: str(member.phase) for member in members}
            told = ", ".join(f"{name} is {phase}" for name, phase in seen.items())
            message = f"no engine of group {self._holder.terms.group} takes requests now: {told or 'none answers'}."
            raise EbbtideError(ErrorCode.ENGINE_ASLEEP, message, members=seen)
        first = next(self._turns) % len(found)
        return found[first:] + found[:first]

    def _servers(self) -> list[ServerState]:
        with self._lock:
            at, servers = self._known
            if time.monotonic() - at > FRESH:
                every = self._holder.run(self._holder.gateway.servers())
                servers = [server for server in every if server.group == self._holder.terms.group]
                self._known = (time.monotonic(), servers)
            return servers

    def generate(self, server: ServerState, member: StateVector) -> None:
        """Let one member generate a token. Raises what it answers instead."""
        body = {"model": server.model, "prompt": "ebb", "max_tokens": 1, "temperature": 0}
        try:
            answer = self._client.post(f"{member.url}/v1/completions", json=body, timeout=PROBE)
        except httpx2.HTTPError as problem:
            message = f"{member.name} generated nothing ({type(problem).__name__}: {problem})."
            raise EbbtideError(ErrorCode.UNREACHABLE, message, member=member.name) from problem
        if answer.status_code != 200:
            message = f"{member.name} generated nothing: it answered {answer.status_code} {answer.text[:200]!r}."
            raise EbbtideError(ErrorCode.ENGINE_ASLEEP, message, member=member.name)
