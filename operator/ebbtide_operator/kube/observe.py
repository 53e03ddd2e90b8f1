"""Reaching agents: HTTPS to the pod's address, trusting the one certificate that its agent enrolled, with our token.

The certificate is the trust anchor itself, so nothing is sent to anybody else, not even the token.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx2
from ebbtide_api.verbs import LEADER

from .kinds import ApiError
from .names import AGENT_PORT
from .objects import Pod
from .tokens import Tokens


def agent_url(pod: Pod) -> str:
    """Return where a pod's agent listens."""
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"https://{host}:{AGENT_PORT}"


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of a certificate. Raises ValueError when it is none."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def context_for(pem: str) -> ssl.SSLContext:
    """Return a TLS context that trusts one certificate alone. Raises ValueError when it is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Only that certificate is trusted, so a name in it would add nothing: pods have addresses that come and go.
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise ValueError(f"it is no certificate: {error}") from error
    return context


@dataclass
class Enrolled:
    """The certificates of agents, by the UID of their pod. A pod that comes back is another pod."""

    changed: Callable[[str], None] = lambda _uid: None
    _certificates: dict[str, str] = field(default_factory=dict)

    def add(self, pod_uid: str, pem: str) -> str:
        """Take a pod's certificate and return its fingerprint. Raises ValueError."""
        context_for(pem)
        digest = fingerprint(pem)
        if self._certificates.get(pod_uid) != pem:
            self._certificates[pod_uid] = pem
            self.changed(pod_uid)
        return digest

    def get(self, pod_uid: str) -> str | None:
        """Return a pod's certificate, if it enrolled."""
        return self._certificates.get(pod_uid)

    def forget(self, pod_uid: str) -> None:
        """Drop a pod's certificate: the pod is no more."""
        self._certificates.pop(pod_uid, None)


class AgentTransport(httpx2.AsyncBaseTransport):
    """Adds our token and the leader's epoch, as it is now, to every request: agents refuse an older leader's."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, tokens: Tokens, server_uid: str, leader: Callable[[], int]
    ) -> None:
        self._inner, self._tokens, self._uid, self._leader = inner, tokens, server_uid, leader

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        request.headers["Authorization"] = f"Bearer {await self._token()}"
        request.headers[LEADER] = str(self._leader())
        answer = await self._inner.handle_async_request(request)
        if answer.status_code == 401:
            self._tokens.forget(self._uid)  # the next call asks for another one
        return answer

    async def _token(self) -> str:
        if known := self._tokens.fresh(self._uid):
            return known
        try:
            return await asyncio.to_thread(self._tokens.ask, self._uid)
        except ApiError as error:
            raise httpx2.ConnectError(f"no token for the agent: {error}") from error

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()


def transport_for(pem: str, tokens: Tokens, server_uid: str, leader: Callable[[], int]) -> AgentTransport:
    """Return what reaches one pod's agent."""
    return AgentTransport(httpx2.AsyncHTTPTransport(verify=context_for(pem)), tokens, server_uid, leader)
