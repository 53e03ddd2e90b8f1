"""A thousand worlds with bad luck: every invariant at every step, and rest once the bad luck ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from .world import STEPS, run

RUNS = int(os.environ.get("EBBTIDE_SIM_RUNS", "1000"))
FRESH = bool(os.environ.get("EBBTIDE_SIM_FRESH"))
"""Look at worlds that nobody has seen yet. Without it, one revision is always shown the same ones."""
PARTS = 4
"""Tests that the runs are divided among: two cores run two at a time, and none takes longer than its timeout."""
# A seed says all, and no other seed is simpler: there is nothing to shrink.
CHECKED = settings(
    max_examples=max(1, RUNS // PARTS),
    deadline=None,
    derandomize=not FRESH,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Nobody reads what a thousand worlds log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
@CHECKED
@given(number=st.integers(0, 2**40))
def test_every_invariant_holds_in_every_world(part: int, number: int) -> None:
    seed = number * PARTS + part
    note(f"python -m tests.sim --seed {seed}")
    assert run(seed).steps >= STEPS


def replay(seed: int, hashes: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.sim", "--seed", str(seed), "--steps", "200"]
    return subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hashes}, capture_output=True, text=True)


@pytest.mark.parametrize("seed", [3, 315])
def test_a_seed_is_one_run_in_every_process(seed: int) -> None:
    first, second = replay(seed, "1"), replay(seed, "2")
    assert first.returncode == second.returncode == 0, first.stdout[-2000:] + first.stderr
    told = first.stdout.splitlines()
    assert len(told) > 20
    assert told[:-1] == second.stdout.splitlines()[:-1]


def test_worlds_get_somewhere() -> None:
    """Bad luck must not be so bad that nothing is ever lent: then nothing is tested."""
    lent = versions = faults = 0
    for seed in range(20):
        world = run(seed)
        lent += world.record.epoch // 2
        versions += world.record.serve.version > 0
        faults += len(world.faults.kinds)
    assert lent > 60
    assert versions > 8
    assert faults > 20
