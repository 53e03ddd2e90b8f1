"""Members as a driver reports them, for tests."""

from typing import Any

from ebbtide_api.state import KV, DeviceMemory, Instance, Phase, StateVector, Weights
from ebbtide_operator.plan import MemberView


def state(name: str = "tiny-0", phase: Phase = Phase.RUNNING, used: float = 900.0, **changes: Any) -> StateVector:
    """Return the state of a member that serves, unless told otherwise."""
    plain: dict[str, Any] = {
        "name": name,
        "server": name.rpartition("-")[0],
        "group": "actor",
        "phase": phase,
        "admission": phase is Phase.RUNNING,
        "weights": Weights.PARKED if phase is Phase.ASLEEP else Weights.RESIDENT,
        "kv": KV.DISCARDED if phase is Phase.ASLEEP else KV.RESIDENT,
        "instance": Instance(uid=f"uid-{name}", pid=7, start_time=9),
        "boot": 1,
        "devices": [DeviceMemory(id="cpu0", used_mib=used, free_mib=4096 - used, total_mib=4096)],
        "since": "2026-01-01T00:00:00.000Z",
    }
    return StateVector(**{**plain, **changes})


def view(name: str = "tiny-0", phase: Phase | None = Phase.RUNNING, **changes: Any) -> MemberView:
    """Return a member; without a phase its agent does not answer."""
    server, _, ordinal = name.rpartition("-")
    return MemberView(name, server, int(ordinal), state=state(name, phase, **changes) if phase else None)
