"""Our tokens for agents: one audience a server, so that a token seen by one server opens no other."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .kinds import ACCOUNTS, Api
from .names import Json, audience
from .objects import text

LIFE_S = 3600
REFRESH = 0.8
"""A token is replaced when this part of its life is over, as the kubelet does."""


@dataclass(frozen=True)
class _Token:
    value: str
    until: float


class Tokens:
    """Tokens of the operator's own ServiceAccount, made when they are needed."""

    def __init__(self, api: Api, namespace: str, account: str) -> None:
        self._api, self._namespace, self._account = api, namespace, account
        self._tokens: dict[str, _Token] = {}

    def fresh(self, server_uid: str) -> str:
        """Return the token for a server's agents if one is at hand, else an empty string."""
        known = self._tokens.get(server_uid)
        return known.value if known and time.monotonic() < known.until else ""

    def ask(self, server_uid: str) -> str:
        """Return a token for a server's agents. Blocks; raises ApiError."""
        if known := self.fresh(server_uid):
            return known
        spec: Json = {"audiences": [audience(server_uid)], "expirationSeconds": LIFE_S}
        body: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = self._api.create(ACCOUNTS, self._namespace, body, self._account, "token")
        token = _Token(text(made, "status", "token"), time.monotonic() + LIFE_S * REFRESH)
        self._tokens[server_uid] = token
        return token.value

    def forget(self, server_uid: str) -> None:
        """Drop the token of a server: it is gone, or its agents refused the token."""
        self._tokens.pop(server_uid, None)
