"""The sequences of SkyRL, slime, AReaL and prime-rl, through the real proxy, against two replicas."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.shims.frameworks import REFUSALS, UPDATES
from tests.shims.house import ShimHouse, checkpoint
from tests.shims.sequences import Call, run, serves


def committed(house: ShimHouse) -> int:
    versions = {version for version, _ in house.engine_versions()}
    assert len(versions) == 1, versions
    return versions.pop()


@pytest.mark.parametrize("name", UPDATES)
def test_a_training_step_ends_with_its_weights_served_by_both(
    house: ShimHouse, client: httpx2.Client, tmp_path: Path, name: str
) -> None:
    before = committed(house)
    label = str(before + 5)
    run(house, client, UPDATES[name], checkpoint(tmp_path / "weights", before + 1), label)
    serves(house)
    assert committed(house) > before
    assert house.versions() == [committed(house)] * 2
    assert house.call("GET", "/v1/groups/actor").json()["owner"] == "engine"


@pytest.mark.parametrize("name", REFUSALS)
def test_a_way_of_weights_that_cannot_be_is_refused_and_changes_nothing(
    house: ShimHouse, client: httpx2.Client, tmp_path: Path, name: str
) -> None:
    before = committed(house)
    answers = run(house, client, REFUSALS[name], tmp_path, "1")
    serves(house)
    assert committed(house) == before
    refused = [answer for answer in answers if answer.get("code") == "NOT_IMPLEMENTED"]
    assert refused
    assert all(answer["message"] and answer["nextAction"] for answer in refused)


def test_three_steps_of_slime_keep_the_trainers_own_count(
    house: ShimHouse, client: httpx2.Client, tmp_path: Path
) -> None:
    """A trainer that starts anew counts from one again: what it calls a version stays its name, ours grows."""
    before = committed(house)
    for step in (1, 2, 3):
        run(house, client, UPDATES["slime-disk"], checkpoint(tmp_path / f"{step}", 40 + step), str(step))
        assert committed(house) >= before + step
    answer = client.get("/get_weight_version").json()
    assert answer["weight_version"] == "3"
    assert {member["committedVersion"] for member in answer["ebbtide"]["members"].values()} == {committed(house)}


def test_every_call_names_where_it_was_read() -> None:
    calls: list[Call] = [call for sequence in {**UPDATES, **REFUSALS}.values() for call in sequence]
    assert all(call.source for call in calls)
    assert all(call.then is not None for call in calls), "every answer is checked against what is measured"
