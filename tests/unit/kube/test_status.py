"""The status of a server: what it says, and when it is worth a write."""

from typing import Any

import pytest
from ebbtide_api.conditions import Condition, ConditionStatus, ConditionType
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.server import InferenceServer
from ebbtide_api.server_status import ServerStatus
from ebbtide_api.state import Phase
from ebbtide_operator.kube.children import Problem
from ebbtide_operator.kube.status import Observed, status_of, status_patch, worth_writing
from ebbtide_operator.plan import GroupRecord, Serve

from .given import UID, server
from .views import view

T0, T1 = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def condition(kind: ConditionType, holds: bool, reason: str, message: str = "", at: str = T0) -> Condition:
    status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
    return Condition(type=kind, status=status, reason=reason, message=message or reason, last_transition_time=at)


def conditions(message: str = "The members use 900 MiB, measured.", at: str = T0) -> tuple[Condition, ...]:
    return (
        condition(ConditionType.READY, True, "Serving", at=at),
        condition(ConditionType.RECONCILING, False, "Settled", at=at),
        condition(ConditionType.STALLED, False, "Settled", at=at),
        condition(ConditionType.MEMORY_RELEASED, False, "InUse", message, at=at),
    )


def seen(*members: Any, **changes: Any) -> Observed:
    plain: dict[str, Any] = {
        "record": GroupRecord(group="actor", epoch=5, serve=Serve(version=2)),
        "members": members or (view(committed_version=2),),
        "conditions": conditions(),
        "now": T1,
    }
    return Observed(**{**plain, **changes})


def written(status: ServerStatus) -> InferenceServer:
    return server(generation=3).model_copy(update={"status": ServerStatus.model_validate(status.wire())})


def test_a_status_says_who_owns_what_and_where_each_member_is() -> None:
    status = status_of(
        server(generation=3),
        seen(view("tiny-1", Phase.ASLEEP, committed_version=3), view("tiny-0", committed_version=2)),
    )
    assert (status.observed_generation, status.owner, status.epoch, status.phase) == (3, "engine", 5, "Serving")
    assert (status.replicas, status.awake_replicas, status.weight_version) == (2, 1, 2)
    assert [member.name for member in status.members] == ["tiny-0", "tiny-1"]
    assert status.members[0].uid == "uid-tiny-0"
    assert status.members[0].device[0].wire() == {"id": "cpu0", "usedMiB": 900, "freeMiB": 3196}
    assert status.selector == "app.kubernetes.io/name=ebbtide-engine,ebbtide.dev/server=tiny"
    assert {one.observed_generation for one in status.conditions} == {3}


def test_nothing_is_claimed_of_a_member_that_does_not_answer() -> None:
    status = status_of(server(), seen(view(phase=None), uids={"tiny-0": "pod-uid"}))
    (member,) = status.members
    assert (member.uid, member.phase, member.weights) == ("pod-uid", Phase.UNKNOWN, "unknown")
    assert (status.awake_replicas, status.weight_version) == (0, 2)


def test_the_last_error_of_a_member_is_told_in_a_sentence() -> None:
    error = EbbtideError(ErrorCode.CANARY_FAILED, "x" * 9000).body()
    (member,) = status_of(server(), seen(view(last_error=error))).members
    assert member.last_error is not None
    assert member.last_error.code is ErrorCode.CANARY_FAILED
    assert len(member.last_error.message) == 4096


def test_a_problem_of_the_spec_stalls_the_server_and_keeps_what_its_members_say() -> None:
    status = status_of(server(), seen(problem=Problem("ImageMissing", "Name an image.")))
    said = {one.type: (one.status, one.reason) for one in status.conditions}
    assert said["Stalled"] == ("True", "ImageMissing")
    assert said["Ready"] == ("False", "ImageMissing")
    assert said["Reconciling"] == ("False", "ImageMissing")
    assert said["MemoryReleased"] == ("False", "InUse")
    assert status.phase == "ImageMissing"


def test_conditions_keep_their_times_over_a_restart_of_the_operator() -> None:
    before = status_of(server(generation=3), seen())
    after = status_of(written(before), seen(conditions=conditions(at=T1)))
    assert {one.last_transition_time for one in after.conditions} == {T0}
    assert not worth_writing(before, after)


def test_a_condition_that_turns_takes_the_new_time() -> None:
    before = status_of(server(generation=3), seen())
    after = status_of(written(before), seen(conditions=(condition(ConditionType.READY, False, "Moving", at=T1),)))
    assert {one.type: one.last_transition_time for one in after.conditions}["Ready"] == T1
    assert worth_writing(before, after)


def test_the_first_status_is_written() -> None:
    assert worth_writing(None, status_of(server(), seen()))


@pytest.mark.parametrize(
    ("changes", "worth"),
    [
        ({}, False),
        ({"members": (view(used=930.0, committed_version=2),)}, False),
        ({"members": (view(used=1100.0, committed_version=2),)}, True),
        ({"members": (view(phase=Phase.DRAINING, committed_version=2),)}, True),
        ({"members": (view(committed_version=3),)}, True),
        ({"members": (view(committed_version=2), view("tiny-1", committed_version=2))}, True),
        ({"members": (view(committed_version=2, devices=[]),)}, True),
        ({"conditions": conditions("The members use 903.5 MiB, measured.")}, False),
        ({"conditions": conditions("Nobody could be asked.")}, True),
        ({"record": GroupRecord(group="actor", epoch=6, serve=Serve(version=2))}, True),
        ({"record": GroupRecord(group="actor", epoch=5, owner="trainer", serve=Serve(version=2))}, True),
        ({"problem": Problem("PortTaken", "Choose another one.")}, True),
    ],
)
def test_only_what_happened_is_written(changes: dict[str, Any], worth: bool) -> None:
    before = status_of(server(), seen())
    assert worth_writing(before, status_of(server(), seen(**changes))) is worth


def test_a_changed_spec_is_acknowledged() -> None:
    assert worth_writing(status_of(server(generation=1), seen()), status_of(server(generation=2), seen()))


def test_what_is_applied_names_the_object_and_nothing_of_its_spec() -> None:
    patch = status_patch(server(), status_of(server(), seen()))
    assert set(patch) == {"apiVersion", "kind", "metadata", "status"}
    assert patch["metadata"] == {"name": "tiny", "namespace": "models", "uid": UID}


def test_a_status_survives_the_wire() -> None:
    status = status_of(server(), seen())
    assert ServerStatus.model_validate(status.wire()) == status
