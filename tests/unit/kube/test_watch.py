"""kopf as an informer: what is watched, what is dropped, and when the watch is taken for dead."""

import asyncio
import time
from typing import Any

import kopf
import pytest
from ebbtide_operator.kube.health import Health
from ebbtide_operator.kube.hub import Hub
from ebbtide_operator.kube.kinds import LEASES, PODS, SERVERS, SETS
from ebbtide_operator.kube.lock import Leadership
from ebbtide_operator.kube.watch import Watches, slim
from starlette.testclient import TestClient

from .fake_api import FakeApi
from .given import SITE, server
from .test_driver import until


def hub(api: FakeApi) -> Hub:
    return Hub(api, SITE, Leadership(api, "system", "op-0"), ("models",))


def test_kopf_keeps_nothing_on_objects_and_watches_only_what_is_ours() -> None:
    settings = Watches({}).settings()
    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True
    assert settings.peering.standalone is True
    assert settings.watching.inactivity_timeout == 70
    selectors = {selector.any_name: value for selector, value in settings.watching.label_selectors.items()}
    assert selectors["pods"] == selectors["statefulsets"] == "ebbtide.dev/server"
    assert "managed-by=ebbtide" in selectors["leases"]


def test_every_kind_has_one_handler_that_is_told_of_events_alone() -> None:
    registry = Watches(hub(FakeApi()).seen).registry()
    assert len(registry._watching.get_all_handlers()) == 4
    assert registry._changing.get_all_handlers() == []
    assert registry._spawning.get_all_handlers() == []
    assert isinstance(registry, kopf.OperatorRegistry)


def test_what_nobody_reads_is_not_kept() -> None:
    raw = {"metadata": {"name": "x", "managedFields": [1]}, "spec": {}}
    assert slim(raw) == {"metadata": {"name": "x"}, "spec": {}}
    assert "managedFields" in raw["metadata"]


def raw_server(version: int, **spec: Any) -> dict[str, Any]:
    made = server(**spec)
    return {"metadata": {**made.metadata.wire(), "resourceVersion": str(version)}, "spec": made.spec.wire()}


def raw_pod(version: int = 5) -> dict[str, Any]:
    labels = {"ebbtide.dev/server": "tiny", "ebbtide.dev/group": "actor"}
    metadata = {"name": "tiny-0", "namespace": "models", "uid": "p", "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, "status": {"phase": "Running"}}


def test_events_reach_the_namespace_also_those_from_before_it_was_opened() -> None:
    async def scene() -> None:
        api = FakeApi()
        made = hub(api)
        made.see_pod(raw_pod(), False)
        made.see_server(raw_server(6), False)
        await until(lambda: "models" in made.spaces)
        space = made.spaces["models"]
        assert set(space.asked) == {"tiny"}
        assert [member.name for member in space.kube.members("actor")] == ["tiny-0"]
        made.see_server(raw_server(5, replicas=7), False)
        assert space.asked["tiny"].spec.replicas == 1
        made.see_server({"metadata": {"name": "tiny", "namespace": "models"}, "spec": {"model": 3}}, False)
        assert space.asked["tiny"].spec.replicas == 1
        made.see_pod(raw_pod(7), True)
        made.see_server(raw_server(8), True)
        assert space.asked == {}
        assert space.kube.members("actor") == ()
        await made.stop()

    asyncio.run(scene())


def test_a_list_purges_what_the_watch_forgot() -> None:
    async def scene() -> None:
        api = FakeApi()
        api.put(SERVERS, {**raw_server(1), "kind": "InferenceServer"})
        api.put(PODS, raw_pod())
        made = hub(api)
        await made.load()
        space = made.spaces["models"]
        assert set(space.asked) == {"tiny"}
        assert len(space.kube.members("actor")) == 1
        await until(lambda: ("statefulsets", "models", "tiny") in api.objects)
        for kind in (SERVERS, PODS):
            for key in [key for key in api.objects if key[0] == kind.plural]:
                del api.objects[key]
        await made.resync()
        assert space.asked == {}
        assert space.kube.members("actor") == ()
        await made.stop()

    asyncio.run(scene())


def test_a_dead_watch_is_told_to_the_kubelet(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    leader = Leadership(api, "system", "op-0")
    health = Health(Hub(api, SITE, leader), leader, {"pods": 3}, 120.0, lambda: 5, {("list", "pods"): 2})
    client = TestClient(health.app())
    assert client.get("/health").status_code == 200
    later = time.monotonic() + 121
    monkeypatch.setattr("time.monotonic", lambda: later)
    assert health.is_deaf()
    monkeypatch.undo()
    leader.echo -= 121
    # One that waits for its turn must be ready, or a rollout would wait for ever.
    assert client.get("/ready").json() == {"status": "waiting"}
    answer = client.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "deaf")


def test_numbers_are_told_with_their_meaning() -> None:
    api = FakeApi()
    leader = Leadership(api, "system", "op-0")
    text = Health(Hub(api, SITE, leader), leader, {"pods": 3}, 120.0, lambda: 5, {("list", "pods"): 2}).exposition()
    assert "ebbtide_api_writes_total 5\n" in text
    assert 'ebbtide_api_requests_total{verb="list",resource="pods"} 2\n' in text
    assert 'ebbtide_watch_events_total{kind="pods"} 3\n' in text
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    shown = {line.split("{")[0].split()[0] for line in text.splitlines() if not line.startswith("#")}
    assert named == shown


def test_every_watched_kind_has_its_path() -> None:
    assert SETS.path("n", "x") == "/apis/apps/v1/namespaces/n/statefulsets/x"
    assert LEASES.path("n") == "/apis/coordination.k8s.io/v1/namespaces/n/leases"
    assert PODS.path() == "/api/v1/pods"
    assert SERVERS.path("n", "x", "status").endswith("/inferenceservers/x/status")
