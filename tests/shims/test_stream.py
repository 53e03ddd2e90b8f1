"""The same sequences where the weights are sent to every member, and no folder is shared with the engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.shims.frameworks import AREAL_VLLM, SLIME_DISK
from tests.shims.house import MEMBERS, ShimHouse, checkpoint
from tests.shims.sequences import Call, run, serves


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShimHouse]:
    made = ShimHouse(tmp_path_factory.mktemp("house"), "Stream")
    try:
        made.open("--timeout", "20s")
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("sequence", [SLIME_DISK, AREAL_VLLM], ids=["lent", "paused"])
def test_weights_are_sent_to_every_member(
    house: ShimHouse, client: httpx2.Client, tmp_path: Path, sequence: list[Call]
) -> None:
    before = max(house.versions())
    run(house, client, sequence, checkpoint(tmp_path / "w", before + 1), str(before + 1))
    serves(house)
    assert house.versions() == [before + 1] * 2
    assert [house.copies(member) for member in MEMBERS] == [[f"v{before + 1}"]] * 2
