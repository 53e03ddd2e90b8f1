"""What a sleep tells of a device: measured, or absent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ebbtide_api.state import Phase
from ebbtide_runtime.agent.steps.sleep import measured_asleep

MIB = 1 << 20


def member(budget: int, used: int | None) -> Any:
    """A member that sleeps no more, of which only its configuration and its last measurement are asked."""
    measured = None if used is None else SimpleNamespace(used_bytes=used * MIB)
    config = SimpleNamespace(device_budget=budget * MIB, device_id="gpu:X")
    return SimpleNamespace(phase=Phase.RUNNING, config=config, probe=SimpleNamespace(latest=lambda: measured))


@pytest.mark.parametrize(
    ("budget", "used", "told"),
    [
        (1000, 100, {"freeMiB": 900.0}),
        (50, 100, {"freeMiB": 0.0}),
        (0, 100, {}),
    ],
)
def test_a_device_of_unknown_size_is_not_told_to_be_full(budget: int, used: int, told: dict[str, float]) -> None:
    (device,) = measured_asleep(member(budget, used), 300 * MIB).wire()["devices"]
    assert device == {"id": "gpu:X", "freedMiB": 200.0, "residualMiB": 100.0, **told}
