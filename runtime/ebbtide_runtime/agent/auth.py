"""Who may call the agent: locally whoever can read the member's token file; in a pod see cluster."""

from __future__ import annotations

from hmac import compare_digest
from pathlib import Path
from typing import Protocol

from ebbtide_api.errors import EbbtideError, ErrorCode

_SCHEME = "bearer "


class Callers(Protocol):
    """Those who may call."""

    def check(self, authorization: str | None) -> None:
        """Raise UNAUTHENTICATED unless the header is one of theirs."""


class Bearer:
    """A bearer token, compared in constant time and never shown."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ValueError("an empty token would let everybody in")
        self._token = token.encode()

    @classmethod
    def from_file(cls, path: str) -> Bearer:
        """Read the token from its file. Raises OSError, or ValueError when it is empty."""
        return cls(Path(path).read_text(encoding="utf-8").strip())

    def __repr__(self) -> str:
        return "Bearer(...)"

    def check(self, authorization: str | None) -> None:
        """Raise UNAUTHENTICATED unless the header carries the token."""
        given = authorization or ""
        matches = given[: len(_SCHEME)].lower() == _SCHEME
        if not (compare_digest(given[len(_SCHEME) :].encode(), self._token) and matches):
            raise EbbtideError(
                ErrorCode.UNAUTHENTICATED, "The agent wants `Authorization: Bearer` with the member's token."
            )
