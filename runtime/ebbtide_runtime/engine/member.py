"""Who we are, inside vLLM's processes: the member named by the environment our launcher set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ebbtide_api.member import MemberConfig

MEMBER = "EBBTIDE_MEMBER"


def active(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether our launcher started this process. A trainer's own vLLM has our entry points too, and must not notice."""
    return bool(environ.get(MEMBER))


def read(path: str | os.PathLike[str]) -> MemberConfig:
    """Read a member's configuration. Raises OSError, or ValueError naming the field."""
    return MemberConfig.model_validate_json(Path(path).read_bytes())


def current(environ: Mapping[str, str] = os.environ) -> MemberConfig:
    """Return the member this process belongs to. Raises KeyError when our launcher did not start it."""
    return read(environ[MEMBER])


def secret(member: MemberConfig) -> bytes:
    """Return the member's boot secret. Raises OSError, or ValueError when it is too short to be one."""
    value = Path(member.secret_path).read_bytes().strip()
    if len(value) < 16:
        raise ValueError(f"{member.secret_path} holds no secret: it needs at least 16 characters")
    return value
