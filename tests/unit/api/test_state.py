"""The state vector: its numbers on the control page never change, and its defaults promise nothing."""

import pytest
from ebbtide_api.member import Engine, MemberConfig, Parking
from ebbtide_api.state import KV, PHASE_NUMBER, Instance, Level, Phase, StateVector, Weights
from ebbtide_api.verbs import Canary

# The number of a phase is part of the control page, which processes of two versions may share: only append.
NUMBERS = {
    "Unknown": 0,
    "PendingDevice": 1,
    "Starting": 2,
    "Running": 3,
    "Paused": 4,
    "Draining": 5,
    "Suspending": 6,
    "Asleep": 7,
    "WakingWeights": 8,
    "WeightsResident": 9,
    "Updating": 10,
    "Committed": 11,
    "WakingKV": 12,
    "Verifying": 13,
    "Faulted": 14,
    "Recovering": 15,
}


def test_phase_numbers_are_fixed() -> None:
    assert {str(phase): number for phase, number in PHASE_NUMBER.items()} == NUMBERS


def test_a_page_of_zeros_reads_as_unknown() -> None:
    assert PHASE_NUMBER[Phase.UNKNOWN] == 0


def test_every_phase_of_the_design_is_there() -> None:
    assert set(PHASE_NUMBER) == set(Phase)
    assert len(set(PHASE_NUMBER.values())) == len(Phase)


def test_defaults_claim_nothing() -> None:
    state = StateVector(
        name="m-0", server="m", group="g", phase=Phase.UNKNOWN, admission=False, instance=Instance(uid="u")
    )
    assert (state.weights, state.kv) == (Weights.UNKNOWN, KV.UNKNOWN)
    assert state.owner == "engine"
    assert state.level is None
    assert state.baseline_mib is None


def test_levels_are_the_engines_numbers() -> None:
    assert (Level.PARKED, Level.DISCARDED) == (1, 2)


def member(**changes: object) -> MemberConfig:
    base = {
        "name": "m-0",
        "uid": "u",
        "server": "m",
        "group": "g",
        "ordinal": 0,
        "home": "/h",
        "memory": "/shm/m",
        "handoff": "/shm/h",
        "data_port": 8000,
        "agent_port": 8001,
        "model": "/models/m",
        "served_name": "m",
        "device_budget": 2**30,
    }
    return MemberConfig.model_validate(base | changes)


def test_a_members_files_lie_in_its_two_folders() -> None:
    config = member()
    assert (config.page_path, config.park_dir, config.weights_dir) == (
        "/shm/m/page",
        "/shm/m/park",
        "/shm/m/weights",
    )
    assert (config.secret_path, config.token_path) == ("/h/secret", "/h/token")


def test_a_member_parks_eagerly_on_the_cpu_unless_told_otherwise() -> None:
    config = member()
    assert (config.parking, config.engine, config.level, config.canary) == (Parking.EAGER, Engine.CPU, 0, Canary())


@pytest.mark.parametrize(
    "wrong",
    [
        {"data_port": 0},
        {"agent_port": 65536},
        {"ordinal": -1},
        {"device_budget": -1},
        {"level": 3},
        {"tensor_parallel": 0},
        {"parking": "Off"},
        {"engine": "tpu"},
        {"color": "red"},
    ],
)
def test_a_wrong_member_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
        member(**wrong)


@pytest.mark.parametrize("parking", Parking)
def test_no_spelling_of_parking_is_a_boolean_in_yaml(parking: Parking) -> None:
    assert parking.lower() not in {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
