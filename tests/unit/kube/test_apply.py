"""Children are applied when they differ, tried first, and never taken from somebody else."""

import asyncio
from typing import Any

import pytest
from ebbtide_api.server import InferenceServer
from ebbtide_operator.kube.apply import MANAGER, Applier
from ebbtide_operator.kube.cache import Cache
from ebbtide_operator.kube.children import Problem
from ebbtide_operator.kube.kinds import BY_NAME, CONFIG_MAPS, SERVICES, SETS, ApiError
from ebbtide_operator.kube.objects import Child, read_child

from .fake_api import FakeApi
from .given import SITE, server

ALL = ["configmaps", "networkpolicies", "services", "services", "poddisruptionbudgets", "statefulsets"]


def applier(api: FakeApi) -> Applier:
    return Applier(api, SITE, Cache())


def apply(made: Applier, which: InferenceServer, *, held: bool = False) -> Problem | None:
    return asyncio.run(made.apply(which, held=held)).problem


def applied(api: FakeApi) -> list[str]:
    return [plural for _, plural, _ in api.written("apply")]


def listed(api: FakeApi) -> Cache[Child]:
    """Return the inventory that a restarted operator reads."""
    inventory: Cache[Child] = Cache()
    for kind in BY_NAME.values():
        found, _ = api.list(kind, "models", "ebbtide.dev/server")
        for one in found:
            inventory.see(read_child(one, kind.kind))
    return inventory


def test_everything_is_applied_once_in_order_and_then_left_alone() -> None:
    api = FakeApi()
    made = applier(api)
    assert apply(made, server()) is None
    assert applied(api) == ALL
    assert apply(made, server()) is None
    assert api.written() == []


def test_a_restarted_operator_writes_nothing() -> None:
    api = FakeApi()
    apply(applier(api), server())
    api.written()
    assert apply(Applier(api, SITE, listed(api)), server()) is None
    assert api.written() == []


def test_a_changed_spec_changes_what_it_touches() -> None:
    api = FakeApi()
    made = applier(api)
    apply(made, server(replicas=1))
    api.written()
    apply(made, server(replicas=2))
    assert api.written() == [("dry-run", "statefulsets", "tiny"), ("apply", "statefulsets", "tiny")]


def test_an_edit_by_hand_is_undone() -> None:
    api = FakeApi()
    made = applier(api)
    apply(made, server())
    api.written()
    by_hand = api.objects["statefulsets", "models", "tiny"]
    edited = api.put(SETS, {**by_hand, "spec": {**by_hand["spec"], "replicas": 9}})
    made.inventory.see(read_child(edited, "StatefulSet"))
    apply(made, server())
    assert applied(api) == ["statefulsets"]
    assert api.objects["statefulsets", "models", "tiny"]["spec"]["replicas"] == 1


def test_a_status_that_moves_is_no_edit() -> None:
    api = FakeApi()
    made = applier(api)
    apply(made, server())
    api.written()
    moved = api.put(SETS, {**api.objects["statefulsets", "models", "tiny"], "status": {"replicas": 1}})
    made.inventory.see(read_child(moved, "StatefulSet"))
    apply(made, server())
    assert api.written() == []


def test_what_was_deleted_comes_back() -> None:
    api = FakeApi()
    made = applier(api)
    apply(made, server())
    api.written()
    gone = api.objects.pop(("configmaps", "models", "tiny-member"))
    made.inventory.lose(read_child({**gone, "metadata": {**gone["metadata"], "resourceVersion": "9999"}}, "ConfigMap"))
    apply(made, server())
    assert applied(api) == ["configmaps"]


def test_nothing_that_is_there_changes_while_the_group_is_lent() -> None:
    api = FakeApi()
    made = applier(api)
    apply(made, server())
    api.written()
    assert apply(made, server(replicas=3, engine={"image": "other"}), held=True) is None
    assert api.written() == []
    apply(made, server(replicas=3, engine={"image": "other"}))
    assert "statefulsets" in applied(api)


@pytest.mark.parametrize("labels", [{}, {"ebbtide.dev/server": "tiny"}])
def test_what_belongs_to_somebody_else_is_never_taken(labels: Any) -> None:
    api = FakeApi()
    theirs = {"metadata": {"name": "tiny", "namespace": "models", "labels": labels}, "spec": {"type": "ExternalName"}}
    api.put(SERVICES, theirs)
    made = applier(api)
    problem = apply(made, server())
    assert problem is not None
    assert problem.reason == "NameTaken"
    assert "Service tiny" in problem.message
    assert api.written() == []


def test_a_recreated_server_waits_until_its_predecessor_is_gone() -> None:
    api = FakeApi()
    apply(applier(api), server(uid="old"))
    api.written()
    made = Applier(api, SITE, listed(api))
    problem = apply(made, server(uid="new"))
    assert problem is not None
    assert problem.reason == "NameTaken"
    assert api.written() == []
    # Its children go one by one; of most of them no watch tells.
    api.objects.clear()
    assert apply(made, server(uid="new")) is None
    assert applied(api) == ALL


@pytest.mark.parametrize(
    ("status", "message"), [(422, "nonsense"), (403, "nonsense"), (500, "failed to convert nonsense")]
)
def test_a_template_that_is_refused_leaves_everything_as_it_was(status: int, message: str) -> None:
    api = FakeApi()
    made = applier(api)
    apply(made, server())
    before = dict(api.objects)
    api.fail["dry-run"] = [ApiError(status, "Invalid", message)]
    problem = apply(made, server(template={"spec": {"hostname": "x"}}))
    assert problem is not None
    assert problem.reason == "TemplateRefused"
    assert "nonsense" in problem.message
    assert api.objects == before


def test_a_server_that_does_not_answer_is_asked_again() -> None:
    api = FakeApi()
    made = applier(api)
    api.fail["apply"] = [ApiError(503, "Busy", "later")]
    with pytest.raises(ApiError):
        apply(made, server())
    assert apply(made, server()) is None
    assert len(api.objects) == len(ALL)


def test_one_manager_owns_what_is_applied() -> None:
    assert MANAGER == "ebbtide/server"
    assert CONFIG_MAPS.path("models", "x") == "/api/v1/namespaces/models/configmaps/x"
    assert SETS.path() == "/apis/apps/v1/statefulsets"
