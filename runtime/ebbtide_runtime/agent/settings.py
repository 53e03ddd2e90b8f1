"""Deadlines and intervals of the agent. Every field is overridden by the environment: EBBTIDE_<FIELD>, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ebbtide_api.state import Phase

from .lifecycle import TERMINAL


@dataclass(frozen=True)
class Settings:
    """Times in seconds. A deadline of a collective call is generous: when it passes, the engine is restarted."""

    tick_s: float = 0.1
    """How often the control page is read."""
    observe_s: float = 0.5
    """How often the engine is asked for its state while it starts, or makes its parked copy."""
    rest_observe_s: float = 10.0
    """How often it is asked at rest. Each question makes vLLM's workers spin for a second (shm_broadcast.py)."""
    silence_s: float = 30.0
    """How long an engine at rest may leave that question unanswered before it is Faulted."""
    unknown_s: float = 60.0
    """Time to derive a phase after the agent started."""
    start_s: float = 900.0
    """Grant to Running: loading the model, and the committed version again."""
    drain_abort_s: float = 10.0
    """Time for aborted requests to leave the engine."""
    pause_s: float = 30.0
    """Time for the engine to confirm that it is paused, after the last request left."""
    suspend_s: float = 120.0
    """The engine's own sleep, which may include making the parked copy."""
    settle_s: float = 15.0
    """Time for memory to be measured free after the engine said that it sleeps."""
    settle_poll_s: float = 0.25
    """How often it is measured meanwhile."""
    measure_s: float = 5.0
    """Time for the launcher to answer one request for a measurement."""
    recent_s: float = 2.0
    """The age of a measurement that still says what an engine at rest holds: the launcher measures every second."""
    suspended_s: float = 300.0
    """How long a member may rest where its memory was not measured free before its engine is restarted."""
    wake_weights_s: float = 120.0
    """Waking weights from their parked copy."""
    wake_kv_s: float = 60.0
    """Mapping the KV cache again."""
    ingest_s: float = 60.0
    """Checking and copying a published version, besides the time its bytes need."""
    upload_idle_s: float = 120.0
    """How long a sender of weights may be silent before what it sent is thrown away."""
    reload_s: float = 60.0
    """Loading weights into the engine, besides the time their bytes need."""
    slowest_bytes_s: float = float(64 << 20)
    """The slowest copy or load that is waited for, in bytes a second."""
    commit_s: float = 30.0
    """Committing a version and resetting the caches."""
    canary_s: float = 30.0
    """The canary request."""
    rest_s: float = 3600.0
    """How long a member may wait for its caller half-way through a wake or an update."""
    recover_s: float = 60.0
    """Time for the launcher to end a faulted engine and start again; then it is told again."""
    retry_after_s: float = 2.0
    """What refused requests are told to wait, in phases that pass by themselves."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """Read overrides from an environment. Raises ValueError that names the variable."""
        found: dict[str, float] = {}
        for item in fields(cls):
            name = f"EBBTIDE_{item.name.upper()}"
            if name in environment:
                found[item.name] = _seconds(name, environment[name])
        return cls(**found)

    def bytes_s(self, count: int) -> float:
        """Return the time that copying or loading `count` bytes may need."""
        return count / self.slowest_bytes_s


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={text!r} is not a positive number")
    return value


def budget(phase: Phase, settings: Settings) -> float | None:
    """Return how long a member may stay in `phase`, or None where it may stay for ever.

    Operations that know better (a drain with its own timeout, a load of known size) give their own budget instead.
    """
    if phase in TERMINAL:
        return None
    return {
        Phase.UNKNOWN: settings.unknown_s,
        Phase.STARTING: settings.start_s,
        Phase.DRAINING: settings.drain_abort_s + settings.pause_s,
        Phase.SUSPENDING: settings.suspend_s + settings.settle_s + 2 * settings.measure_s,
        Phase.WAKING_WEIGHTS: settings.wake_weights_s,
        Phase.WAKING_KV: settings.wake_kv_s,
        Phase.FAULTED: settings.recover_s,
        Phase.RECOVERING: settings.recover_s,
    }.get(phase, settings.rest_s)
