"""What a member is told at birth: `member.json`, read by its agent, its launcher and its engine alike."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from .base import Message
from .verbs import Canary

BORN = "born.json"
"""The file in a member's home that a pod was made for, as it was."""
RECEIVED = "handoff"
"""The folder of a member's memory in which streamed weights are received."""


class Engine(StrEnum):
    """The device an engine runs on."""

    CPU = "cpu"
    CUDA = "cuda"


class Parking(StrEnum):
    """When the parked copy of a weight version is made."""

    EAGER = "Eager"
    ON_SLEEP = "OnSleep"
    OFF = "Never"  # not "Off": YAML reads a bare Off as false


class MemberConfig(Message):
    """One replica's configuration. Paths are absolute; byte counts are bytes.

    `home` survives a reboot of the machine (epoch, committed version, logs); `memory` is memory-backed and holds the
    control page, parked weights and the member's own copy of published weights.
    """

    name: str
    uid: str
    server: str
    group: str
    ordinal: int = Field(ge=0)
    home: str
    memory: str
    handoff: str
    host: str = "127.0.0.1"
    data_port: int = Field(ge=1, le=65535)
    agent_port: int = Field(ge=1, le=65535)
    engine: Engine = Engine.CPU
    model: str
    served_name: str
    revision: str = ""
    quantization: str = ""
    tensor_parallel: int = Field(1, ge=1)
    pipeline_parallel: int = Field(1, ge=1)
    extra_args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    device_id: str = "cpu0"
    device_budget: int = Field(ge=0)
    host_memory_limit: int | None = Field(None, ge=0)
    parking: Parking = Parking.EAGER
    level: int = Field(0, ge=0, le=2)
    canary: Canary = Canary()

    @property
    def page_path(self) -> str:
        """The control page, mapped by engine, launcher and agent."""
        return f"{self.memory}/page"

    @property
    def park_dir(self) -> str:
        """Where parked weights lie."""
        return f"{self.memory}/park"

    @property
    def weights_dir(self) -> str:
        """Where the member's own, checked copies of published weights lie, one folder a version."""
        return f"{self.memory}/weights"

    @property
    def received_dir(self) -> str:
        """Where weights that were streamed to the member lie, one folder a version, until it has its own copy."""
        return f"{self.memory}/{RECEIVED}"

    @property
    def headers_dir(self) -> str:
        """The headers of the model's files, which the launcher leaves where the agent cannot see the model."""
        return f"{self.home}/checkpoint"

    @property
    def secret_path(self) -> str:
        """The boot secret that opens the engine's control routes (mode 0600)."""
        return f"{self.home}/secret"

    @property
    def token_path(self) -> str:
        """The bearer token that the agent accepts (mode 0600)."""
        return f"{self.home}/token"


def load_member(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> MemberConfig:
    """Return the configuration in `path`. Raises OSError, or ValueError that says what is wrong with it.

    On a cluster one file serves all pods of a server: EBBTIDE_POD_NAME and EBBTIDE_POD_UID say which member this is.
    The file changes under a running pod; EBBTIDE_MEMBER_DIGEST, if set, names the one that the pod was made for. A
    container that restarts goes on with that one: see `keep_member`.
    """
    data = Path(path).read_bytes()
    wanted = environ.get("EBBTIDE_MEMBER_DIGEST")
    if wanted and _digest(data) != wanted:
        data = _kept(data, wanted)
        if not data:
            raise ValueError(f"{path} was changed since this pod was made; the pod must be replaced")
    config = MemberConfig.model_validate_json(data)
    pod = environ.get("EBBTIDE_POD_NAME")
    if not pod:
        return config
    stem, _, number = pod.rpartition("-")
    if stem != config.server or not number.isdigit():
        raise ValueError(f"EBBTIDE_POD_NAME={pod!r} is no pod of server {config.server!r}")
    uid = environ.get("EBBTIDE_POD_UID") or config.uid
    return config.model_copy(update={"name": pod, "uid": uid, "ordinal": int(number)})


def keep_member(path: str | os.PathLike[str], home: str, environ: Mapping[str, str] = os.environ) -> None:
    """Keep the file that a pod was made for in the member's home, which lives as long as the pod. Raises OSError.

    A lent engine sleeps for as long as it likes; meanwhile its server may be changed, and a container may restart.
    """
    data, kept = Path(path).read_bytes(), Path(home) / BORN
    if _digest(data) != environ.get("EBBTIDE_MEMBER_DIGEST") or kept.exists():
        return
    fresh = kept.with_name(f".{BORN}.{os.getpid()}")
    fresh.write_bytes(data)
    fresh.replace(kept)


def _kept(changed: bytes, wanted: str) -> bytes:
    """Return the kept file of that digest, or nothing. The home is the same, whatever else was changed."""
    try:
        data = (Path(json.loads(changed)["home"]) / BORN).read_bytes()
    except (OSError, ValueError, LookupError, TypeError):
        return b""
    return data if _digest(data) == wanted else b""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
