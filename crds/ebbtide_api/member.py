"""What a member is told at birth: `member.json`, read by its agent and its launcher alike."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from .base import Message
from .verbs import Canary


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
    def secret_path(self) -> str:
        """The boot secret that opens the engine's control routes (mode 0600)."""
        return f"{self.home}/secret"

    @property
    def token_path(self) -> str:
        """The bearer token that the agent accepts (mode 0600)."""
        return f"{self.home}/token"
