"""What the engine answers on its data port. Everything that is not named here is denied.

Paths are matched exactly as vLLM's router sees them (decoded, without the mount point), so no spelling of a path can
reach a route that the gate did not allow. Source: the routes that vLLM 0.32 registers (`entrypoints/launchers`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

PREFIX = "/ebbtide"
CONTROL = "/ebbtide/v1"


class Kind(Enum):
    """How the gate treats a request."""

    OPEN = "open"  # answered in every phase, never counted: needs no device memory
    INFERENCE = "inference"  # admitted or refused as a whole, counted while inside
    CONTROL = "control"  # ours, with the boot secret only
    DENIED = "denied"
    METHOD = "method"  # a known path, another method


_OPEN: dict[str, str] = {
    "/health": "GET",
    "/ping": "GET",
    "/version": "GET",
    "/load": "GET",
    "/metrics": "GET",
    "/v1/models": "GET",
    "/tokenize": "POST",
    "/detokenize": "POST",
    "/v1/chat/completions/render": "POST",
    "/v1/chat/completions/derender": "POST",
    "/v1/completions/render": "POST",
    "/v1/completions/derender": "POST",
    "/v1/messages/render": "POST",
    "/v1/messages/count_tokens": "POST",
    "/v1/responses/render": "POST",
}
_INFERENCE: dict[str, str] = dict.fromkeys(
    (
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/messages",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/score",
        "/v1/rerank",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v2/embed",
        "/v2/rerank",
        "/cohere/v2/chat",
        "/inference/v1/generate",
        "/generative_scoring",
        "/score",
        "/rerank",
        "/classify",
        "/pooling",
    ),
    "POST",
)
_CONTROL: dict[str, str] = {
    f"{CONTROL}/engine": "GET",
    **dict.fromkeys(
        (f"{CONTROL}/{verb}" for verb in ("pause", "resume", "sleep", "wake", "park", "reload", "commit")), "POST"
    ),
}
_TABLE: dict[str, tuple[Kind, str]] = {
    **{path: (Kind.OPEN, method) for path, method in _OPEN.items()},
    **{path: (Kind.INFERENCE, method) for path, method in _INFERENCE.items()},
    **{path: (Kind.CONTROL, method) for path, method in _CONTROL.items()},
}
# A stored response is read and cancelled in the API process alone.
_RESPONSE = re.compile(r"/v1/responses/[A-Za-z0-9_-]{1,128}(/cancel)?")
WEBSOCKETS = frozenset({"/v1/realtime"})


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path as the router matches it: `starlette._utils.get_route_path`, word for word."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path


def rule(path: str) -> tuple[Kind, str]:
    """Return what a path is, and the one method it takes."""
    found = _TABLE.get(path)
    if found is not None:
        return found
    if matched := _RESPONSE.fullmatch(path):
        return Kind.OPEN, "POST" if matched[1] else "GET"
    return (Kind.CONTROL, "") if is_ours(path) else (Kind.DENIED, "")


def is_ours(path: str) -> bool:
    """Whether a path lies under our prefix, known or not."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def classify(method: str, path: str) -> Kind:
    """Return how to treat an HTTP request. Total: every method and path has an answer."""
    kind, allowed = rule(path)
    if kind in (Kind.DENIED, Kind.CONTROL) or method == allowed:
        return kind
    return Kind.METHOD
