"""A launcher in a pod: what its environment tells it, and what it leaves for the engine and the agent to read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide_api.member import MemberConfig

from ..agent.checkpoint import CheckpointError, copy_headers


@dataclass(frozen=True)
class Told:
    """The pod's environment. `drain_s`: how long requests are waited for before the end; no port: no probes."""

    pod: bool = False
    drain_s: float = 0
    probe_port: int | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Told:
        """Read it. Raises ValueError that names the variable."""
        port = _number(environ, "EBBTIDE_PROBE_PORT")
        return cls(
            pod=bool(environ.get("EBBTIDE_POD_NAME")),
            drain_s=_number(environ, "EBBTIDE_DRAIN_S") or 0,
            probe_port=None if port is None else int(port),
        )


def _number(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r} is no whole number")
    return int(text)


def settle(member: MemberConfig, path: str, told: Told) -> str:
    """Return the file by which the engine's processes know their member. Raises OSError.

    In a pod that is a copy: the ConfigMap is the same for all members, and changes while the engine runs.
    """
    if not told.pod:
        return path
    own = Path(member.home) / "member.json"
    fresh = own.with_name(f".{own.name}.{os.getpid()}")
    fresh.write_text(json.dumps(member.wire()), encoding="utf-8")
    fresh.replace(own)
    _leave_headers(member)
    return str(own)


def _leave_headers(member: MemberConfig) -> None:
    try:
        copy_headers(member.model, Path(member.headers_dir))
    except CheckpointError as problem:
        # The engine knows formats that we do not; only updates need the headers, and they say that they are missing.
        print(f"ebbtide: no headers for the agent: {problem}", file=sys.stderr, flush=True)
