"""The state of one member: a vector, never one boolean (DESIGN 5.1)."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from pydantic import Field

from .base import Reading
from .errors import ErrorBody


class Phase(StrEnum):
    """Where a member is in its lifecycle. `PHASE_NUMBER` gives each its number on the control page."""

    UNKNOWN = "Unknown"
    PENDING_DEVICE = "PendingDevice"
    STARTING = "Starting"
    RUNNING = "Running"
    PAUSED = "Paused"
    DRAINING = "Draining"
    SUSPENDING = "Suspending"
    ASLEEP = "Asleep"
    WAKING_WEIGHTS = "WakingWeights"
    WEIGHTS_RESIDENT = "WeightsResident"
    UPDATING = "Updating"
    COMMITTED = "Committed"
    WAKING_KV = "WakingKV"
    VERIFYING = "Verifying"
    FAULTED = "Faulted"
    RECOVERING = "Recovering"


PHASE_NUMBER: dict[Phase, int] = {phase: number for number, phase in enumerate(Phase)}


class Weights(StrEnum):
    """What is known of a member's weights. Anything but `resident` never serves."""

    RESIDENT = "resident"
    PARKED = "parked"
    DISCARDED = "discarded"
    PARTIAL = "partial"
    UNKNOWN = "unknown"


class KV(StrEnum):
    """Whether a member's KV cache has memory."""

    RESIDENT = "resident"
    DISCARDED = "discarded"
    UNKNOWN = "unknown"


class Level(IntEnum):
    """How deep a member sleeps: 1 keeps a parked copy of the weights, 2 discards them."""

    PARKED = 1
    DISCARDED = 2


class Inflight(Reading):
    """Work that a drain waits for."""

    running: int = 0
    waiting: int = 0
    transfers: int = 0


class Instance(Reading):
    """What a caller believes it talks to: a restarted engine is another instance."""

    uid: str
    pid: int = 0
    start_time: int = 0


class DeviceMemory(Reading):
    """One device, as measured: bytes used by the member, and free of the device's budget or size."""

    id: str
    used_mib: float
    free_mib: float
    total_mib: float


class ParkedCopy(Reading):
    """A checked host copy of one rank's weights."""

    version: int
    mib: float
    valid: bool


class RankState(Reading):
    """One rank's part of the engine, reported by its worker."""

    rank: int
    pid: int
    weights: Weights
    kv: KV
    version: int = 0
    pending_version: int | None = None
    weights_mib: float = 0
    kv_mib: float = 0
    resident_mib: float = 0
    parked: ParkedCopy | None = None
    parking: bool = False
    copied_bytes: int = 0
    last_error: str = ""


class EngineState(Reading):
    """The engine as its own API process reports it (`GET /ebbtide/v1/engine`)."""

    ranks: list[RankState]
    paused: bool
    weight_version: int
    kv_blocks: int
    unfinished: int = 0


class PhaseTiming(Reading):
    """How long a phase took, in milliseconds."""

    phase: Phase
    ms: float


class StateVector(Reading):
    """Everything known of one member, as measured by its agent.

    `idle_seconds`: how long nobody has been inside, since the last request left or the gate was opened; None before.
    `wakes`: a request that finds the gate closed shall wake it, and is held for `hold_seconds`. `requested`: one came.
    """

    name: str
    server: str
    group: str
    phase: Phase
    admission: bool
    inflight: Inflight = Inflight()
    idle_seconds: float | None = None
    wakes: bool = False
    hold_seconds: float = 0
    requested: bool = False
    weights: Weights = Weights.UNKNOWN
    kv: KV = KV.UNKNOWN
    weight_version: int = 0
    pending_version: int | None = None
    committed_version: int = 0
    cache_epoch: int = 0
    level: Level | None = None
    owner: str = "engine"
    epoch: int = 0
    leader: int = 0
    instance: Instance
    boot: int = 0
    operation: str | None = None
    devices: list[DeviceMemory] = Field(default_factory=list)
    baseline_mib: float | None = None
    residual_mib: float | None = None
    weights_mib: float = 0
    kv_mib: float = 0
    parked_mib: float = 0
    host_mib: float = 0
    host_limit_mib: float | None = None
    kv_blocks: int = 0
    received: list[int] = Field(default_factory=list)
    """Versions of the weights that were streamed into the member's own memory, whole, and are still there."""
    cycle: int = 0
    since: str = ""
    state_version: int = 0
    url: str = ""
    last_error: ErrorBody | None = None
