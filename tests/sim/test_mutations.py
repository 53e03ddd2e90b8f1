"""The simulation finds every fault that was put in on purpose, and by the invariant that it breaks."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from .mutations import MUTATIONS, Mutation
from .world import Violation, run

TRIES = 40
"""Worlds in which a fault has to show itself."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def found(mutation: Mutation) -> Violation | None:
    for seed in range(TRIES):
        try:
            with mutation.applied():
                run(seed, faults=mutation.faults)
        except Violation as violation:
            return violation
    return None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_on_purpose_is_found(mutation: Mutation) -> None:
    violation = found(mutation)
    assert violation is not None, f"{mutation.name} was not found in {TRIES} worlds"
    assert violation.invariant in mutation.invariants, str(violation)


def test_every_invariant_is_broken_by_some_fault() -> None:
    assert set(range(15)) == {number for mutation in MUTATIONS for number in mutation.invariants}
    assert len(MUTATIONS) >= 12
