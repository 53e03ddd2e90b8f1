"""Every path that is answered here, and not passed on: vLLM's, SGLang's, and those that frameworks add to them."""

from __future__ import annotations

from . import sglang, vllm
from .asked import Answer, Asked, refuse
from .desk import Desk, Shim
from .refused import REFUSED

SHIMS: dict[tuple[str, str], Shim] = {**vllm.SHIMS, **sglang.SHIMS}


def _impossible(_desk: Desk, asked: Asked) -> Answer:
    what, action = REFUSED[asked.path]
    raise refuse(f"{asked.path}: {what}", action)


def shim_of(method: str, path: str) -> Shim | None:
    """Return what answers a call; None: it goes to the gateway or to an engine."""
    return SHIMS.get((method, path)) or (_impossible if path in REFUSED else None)


def takes_body(path: str) -> bool:
    """Whether a call's body is read as JSON. That of a refused one may be of any size, and is thrown away."""
    return path not in REFUSED
