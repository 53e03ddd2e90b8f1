"""The two kinds: what they take, what they refuse, and what their fields mean to the rest of Ebbtide."""

import json
from typing import Any

import pytest
from ebbtide_api.explain import dotted, faults
from ebbtide_api.policy import KVCachePolicy
from ebbtide_api.server import Handoff, InferenceServer
from ebbtide_api.sleep_spec import SleepDrainMode, SleepLevel
from ebbtide_api.state import Level
from ebbtide_api.verbs import Canary, Drain, DrainMode, OnDeadline
from pydantic import ValidationError

from tests.unit.api.objects import BAD, CHANGES, GOOD, SERVER, Case, server

KINDS: dict[str, type[InferenceServer] | type[KVCachePolicy]] = {
    "InferenceServer": InferenceServer,
    "KVCachePolicy": KVCachePolicy,
}


def read(raw: dict[str, Any]) -> InferenceServer | KVCachePolicy:
    """Read an object as the API server would: strict about types, wire names only."""
    return KINDS[raw["kind"]].model_validate_json(json.dumps(raw), strict=True, by_alias=True, by_name=False)


def tiny(**changes: Any) -> InferenceServer:
    made = read(server("", **changes).object())
    assert isinstance(made, InferenceServer)
    return made


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_good_objects_are_taken_and_read_back_the_same(case: Case) -> None:
    made = read(case.object())
    assert read(made.wire()) == made


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_bad_objects_are_refused_at_the_field(case: Case) -> None:
    raw = case.object()
    with pytest.raises(ValidationError) as caught:
        read(raw)
    found = {dotted(path): why for path, _, why in faults(caught.value, KINDS[raw["kind"]])}
    at_fault = [why for path, why in found.items() if path.startswith(case.field)]
    assert at_fault, found
    assert case.why in at_fault[0]


def test_names_of_cases_are_unique() -> None:
    for cases in (GOOD, BAD):
        names = [(case.base["kind"], case.name) for case in cases]
        assert len(set(names)) == len(names)


def test_the_least_server_has_the_designs_defaults() -> None:
    spec = tiny().spec
    assert (spec.replicas, spec.awake_replicas, spec.power, spec.role) == (1, None, "Awake", "Both")
    assert (spec.sleep.level, spec.sleep.parking, spec.sleep.settle.seconds) == ("Auto", "Eager", 0.2)
    assert (spec.engine.port, spec.engine.extra_args, spec.weights.handoff) == (8000, (), None)


def test_a_server_is_its_own_group_and_model_unless_told_otherwise() -> None:
    assert (tiny().group, tiny().served_name) == ("tiny", "tiny")
    named = tiny(spec__colocation={"group": "actor"}, spec__model__servedName="llama")
    assert (named.group, named.served_name) == ("actor", "llama")


def test_levels_are_the_engines_levels() -> None:
    assert [level.number for level in SleepLevel] == [0, Level.PARKED, Level.DISCARDED]


def test_the_spec_speaks_the_verbs() -> None:
    sleep = tiny(spec__sleep={"drain": {"mode": "Abort", "timeout": "1m30s", "onDeadline": "Fail"}}).spec.sleep
    assert sleep.drain.request == Drain(mode=DrainMode.ABORT, timeout=90, on_deadline=OnDeadline.FAIL)
    weights = tiny(spec__weights={"canary": {"prompt": "hi", "tokens": 8}}).spec.weights
    assert weights.canary.request == Canary(prompt="hi", tokens=8)


@pytest.mark.parametrize("mode", SleepDrainMode)
def test_every_way_to_drain_is_a_verbs_way(mode: SleepDrainMode) -> None:
    assert DrainMode(mode) == mode


def test_the_defaults_of_spec_and_verbs_agree() -> None:
    assert tiny().spec.sleep.drain.request == Drain()
    assert tiny().spec.weights.canary.request == Canary()


def test_no_hand_off_is_a_word_and_not_absence() -> None:
    assert tiny(spec__weights={"handoff": "None"}).spec.weights.handoff is Handoff.NONE


def test_what_the_user_set_can_be_told_from_defaults() -> None:
    spec = tiny(spec__sleep={"settle": "1s"}).spec
    assert spec.model_fields_set == {"model", "sleep"}
    assert spec.sleep.model_fields_set == {"settle"}


@pytest.mark.parametrize(("name", "changes", "field", "why"), CHANGES, ids=lambda value: str(value)[:12])
def test_some_things_cannot_be_changed(name: str, changes: dict[str, Any], field: str, why: str) -> None:
    new = read(Case(name, SERVER, changes).object())
    assert isinstance(new, InferenceServer)
    ((path, message),) = new.forbidden_changes(tiny())
    assert path == field
    assert why in message


def test_everything_else_can_be_changed() -> None:
    changed = tiny(spec__replicas=3, spec__power="Asleep", spec__model__source="/other", spec__engine={"port": 9000})
    assert changed.forbidden_changes(tiny()) == []


def test_naming_the_group_that_the_server_had_by_default_changes_nothing() -> None:
    assert tiny(spec__colocation={"group": "tiny"}).forbidden_changes(tiny()) == []


def test_a_status_from_the_cluster_is_read_with_what_a_newer_version_added() -> None:
    raw = server("").object() | {
        "status": {"phase": "Running", "weather": "fine", "members": [{"name": "tiny-0", "shoes": 2}]}
    }
    made = read(raw)
    assert isinstance(made, InferenceServer)
    assert made.status is not None
    assert made.status.members[0].name == "tiny-0"


def test_metadata_of_the_cluster_is_read() -> None:
    raw = server("").object()
    raw["metadata"] |= {"uid": "u", "managedFields": [{}], "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 3}
    assert read(raw).metadata.generation == 3
