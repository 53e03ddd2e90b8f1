"""The cluster's driver: what it sees of pods, and what it does to children and pods."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from ebbtide_operator.drive.agents import Unreachable
from ebbtide_operator.kube.apply import Applier
from ebbtide_operator.kube.cache import Cache
from ebbtide_operator.kube.children.member import member_config
from ebbtide_operator.kube.driver import Ask, KubeDriver
from ebbtide_operator.kube.kinds import PODS, ApiError
from ebbtide_operator.kube.objects import Child, Pod
from ebbtide_operator.plan import GroupRecord, LeaseRecord, ReturnIntent, Serve

from .fake_api import FakeApi
from .given import SITE, UID, server
from .views import state

NS = "models"


async def until(true: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not true():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


def pod(name: str = "tiny-0", uid: str = "", **changes: Any) -> Pod:
    server_name, _, ordinal = name.rpartition("-")
    plain = Pod(
        NS, name, uid or f"uid-{name}", 10, server_name, "actor", int(ordinal), "10.0.0.1", "new", True, False, ""
    )
    return replace(plain, **changes)


class Stage:
    """A driver on a server in memory."""

    def __init__(self, hearing: float = 0) -> None:
        self.api = FakeApi()
        self.held: set[str] = set()
        self.told: list[str] = []
        self.inventory: Cache[Child] = Cache(lambda old, new: self.driver.see_child(old, new))
        ask = Ask(lambda _pod: None, lambda group: group in self.held, hearing=hearing)
        self.driver = KubeDriver(self.api, NS, Applier(self.api, SITE, self.inventory), ask)
        self.driver.listen(self.told.append)

    def put_pod(self, name: str, uid: str = "", **labels: str) -> Any:
        metadata = {"name": name, "namespace": NS, "uid": uid or f"uid-{name}", "labels": labels}
        return self.api.put(PODS, {"metadata": metadata, "status": {"phase": "Running"}})

    def set_revision(self, revision: str) -> None:
        found = self.inventory.get((NS, "StatefulSet", "tiny"))
        assert found is not None
        self.inventory.see(replace(found, revision=revision, settled=True, version=found.version + 1))


def play(scene: Callable[[Stage], Awaitable[None]], hearing: float = 0) -> None:
    async def run() -> None:
        stage = Stage(hearing)
        try:
            await scene(stage)
        finally:
            await stage.driver.stop(keep=True)

    asyncio.run(run())


def test_a_wanted_server_gets_its_children_and_an_unchanged_one_no_writes() -> None:
    async def scene(stage: Stage) -> None:
        stage.driver.want({"tiny": server()})
        await until(lambda: len(stage.api.objects) == 6)
        stage.api.written()
        stage.driver.want({"tiny": server()})
        stage.driver.ensure("tiny-0", "tiny", 0)
        stage.driver.want({"tiny": server(), "chat": server("chat")})
        await until(lambda: len(stage.api.objects) == 12)
        assert {name for _, _, name in stage.api.written() if "tiny" in name} == set()

    play(scene)


def test_pods_are_members_by_their_labels() -> None:
    async def scene(stage: Stage) -> None:
        stage.driver.see_pod(None, pod("tiny-1"))
        stage.driver.see_pod(None, pod("tiny-0", trouble="no node takes it"))
        members = stage.driver.members("actor")
        assert [(m.name, m.ordinal, m.trouble) for m in members] == [
            ("tiny-0", 0, "no node takes it"),
            ("tiny-1", 1, ""),
        ]
        assert stage.driver.uids("actor") == {"tiny-0": "uid-tiny-0", "tiny-1": "uid-tiny-1"}
        assert stage.driver.members("other") == ()
        stage.driver.see_pod(pod("tiny-1"), None)
        assert [member.name for member in stage.driver.members("actor")] == ["tiny-0"]
        assert set(stage.told) == {"actor"}

    play(scene)


def test_another_pod_of_that_name_is_another_member() -> None:
    async def scene(stage: Stage) -> None:
        stage.driver.see_pod(None, pod(uid="a"))
        first = stage.driver._members["tiny-0"]
        stage.driver.see_pod(pod(uid="a"), pod(uid="b"))
        assert stage.driver._members["tiny-0"] is not first
        assert stage.driver.uids("actor") == {"tiny-0": "b"}

    play(scene)


def test_a_pod_of_an_older_template_is_outdated_and_only_then() -> None:
    async def scene(stage: Stage) -> None:
        stage.driver.want({"tiny": server()})
        await until(lambda: stage.inventory.get((NS, "StatefulSet", "tiny")))
        stage.driver.see_pod(None, pod(revision="old"))
        assert [member.outdated for member in stage.driver.members("actor")] == [False]
        stage.held.add("actor")
        stage.set_revision("new")
        assert [member.outdated for member in stage.driver.members("actor")] == [True]
        stage.driver.see_pod(pod(revision="old"), pod(revision="new"))
        await until(lambda: [member.outdated for member in stage.driver.members("actor")] == [False])

    play(scene)


def test_an_outdated_pod_is_deleted_by_its_identity_and_never_while_lent() -> None:
    async def scene(stage: Stage) -> None:
        stage.driver.want({"tiny": server()})
        await until(lambda: stage.inventory.get((NS, "StatefulSet", "tiny")))
        made = stage.put_pod("tiny-0")
        version = int(made["metadata"]["resourceVersion"])
        stage.driver.see_pod(None, pod(revision="old", version=version))
        stage.held.add("actor")
        stage.set_revision("new")
        stage.driver.ensure("tiny-0", "tiny", 0)
        await asyncio.sleep(0.1)
        assert stage.api.written("delete") == []
        stage.held.clear()
        stage.driver.ensure("tiny-0", "tiny", 0)
        await until(lambda: ("pods", NS, "tiny-0") not in stage.api.objects)
        stage.driver.ensure("tiny-0", "tiny", 0)
        await asyncio.sleep(0.1)
        assert stage.api.written("delete") == [("delete", "pods", "tiny-0")]

    play(scene)


def test_a_pod_that_changed_meanwhile_is_looked_at_again() -> None:
    async def scene(stage: Stage) -> None:
        stage.driver.want({"tiny": server()})
        await until(lambda: stage.inventory.get((NS, "StatefulSet", "tiny")))
        stage.put_pod("tiny-0")
        stage.driver.see_pod(None, pod(revision="old", version=1))
        stage.set_revision("new")
        await until(lambda: ("delete", "pods", "tiny-0") in stage.api.calls)
        assert ("pods", NS, "tiny-0") in stage.api.objects

    play(scene)


def test_a_spec_that_cannot_be_carried_out_is_told_and_healed() -> None:
    async def scene(stage: Stage) -> None:
        stage.api.fail["dry-run"] = [ApiError(422, "Invalid", "nonsense")]
        stage.driver.want({"tiny": server()})
        await until(lambda: "tiny" in stage.driver.problems)
        assert stage.driver.problems["tiny"].reason == "TemplateRefused"
        assert stage.api.objects == {}
        stage.driver.want({"tiny": server(replicas=2)})
        await until(lambda: not stage.driver.problems)
        assert stage.told.count("actor") >= 2

    play(scene)


def test_the_end_of_a_member_whose_server_is_gone_touches_nothing() -> None:
    async def scene(stage: Stage) -> None:
        stage.driver.see_pod(None, pod())
        stage.driver.end("tiny-0")
        stage.driver.end("never-heard-of-0")
        await asyncio.sleep(0.05)
        assert stage.api.calls == []

    play(scene)


def test_published_weights_are_where_the_members_see_them() -> None:
    async def scene(stage: Stage) -> None:
        assert stage.driver.handoff("actor") == ""
        stage.driver.want({"tiny": server()})
        assert stage.driver.handoff("actor") == "/run/ebbtide/handoff"
        back = ReturnIntent(source="/run/ebbtide/handoff/v2", deadline=1)
        lease = LeaseRecord(id="l1", holder="t", ttl_seconds=1, back=back)
        record = GroupRecord(group="actor", lease=lease, serve=Serve(version=1))
        assert stage.driver.sources(record) == {"/run/ebbtide/handoff/v2"}
        assert stage.driver.started_at(1) is None

    play(scene)


def test_weights_are_sent_to_agents_unless_the_spec_says_otherwise() -> None:
    async def scene(stage: Stage) -> None:
        assert not stage.driver.streams("actor")
        stage.driver.want({"tiny": server()})
        assert stage.driver.streams("actor")
        volume = {"spec": {"volumes": [{"name": "ebbtide-handoff", "persistentVolumeClaim": {}}]}}
        stage.driver.want({"tiny": server(weights={"handoff": "SharedMemory"}, template=volume)})
        assert not stage.driver.streams("actor")

    play(scene)


def test_what_is_streamed_is_looked_for_where_agents_receive_it() -> None:
    config = member_config(server())
    assert config.handoff == config.received_dir == "/run/ebbtide/handoff"


class Forgetful:
    """An agent's client that only hears what to forget."""

    url = "https://agent"

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.dropped: list[tuple[int, bool]] = []

    async def state(self, newer_than: int | None = None) -> Any:
        if newer_than is not None:
            await asyncio.sleep(60)
        return state()

    async def drop_upload(self, version: int, epoch: int | None = None, *, through: bool = False) -> None:
        self.dropped.append((version, through))
        if self.fails:
            raise Unreachable("gone")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_agents_forget_what_was_streamed_to_them_when_it_is_retired(fails: bool) -> None:
    client = Forgetful(fails)

    async def scene(stage: Stage) -> None:
        stage.driver._reach = lambda _pod: client  # type: ignore[assignment,return-value]
        stage.driver.want({"tiny": server()})
        assert stage.driver.agents("actor") == {}
        stage.driver.see_pod(None, pod())
        assert stage.driver.agents("actor") == {"tiny-0": None}, "it has not answered yet"
        await until(lambda: stage.driver.agents("actor")["tiny-0"] is client)
        stage.driver.retire("actor", 4)
        await until(lambda: client.dropped)
        assert client.dropped == [(4, True)]

    play(scene)


def test_views_and_uids_of_given_servers_fit() -> None:
    assert state().instance.uid == "uid-tiny-0"
    assert server().metadata.uid == UID


def set_pods(stage: Stage, made: int, wanted: int = 2) -> None:
    found = stage.inventory.get((NS, "StatefulSet", "tiny"))
    assert found is not None
    stage.inventory.see(replace(found, made=made, replicas=wanted, settled=True, version=found.version + 1))


def test_pods_that_are_refused_are_a_problem_with_a_next_step_until_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide_operator.kube.driver.PATIENCE", 0.05)

    async def scene(stage: Stage) -> None:
        stage.driver.want({"tiny": server(replicas=2)})
        await until(lambda: stage.inventory.get((NS, "StatefulSet", "tiny")))
        set_pods(stage, made=1)
        await until(lambda: stage.driver.problems)
        problem = stage.driver.problems["tiny"]
        assert problem.reason == "PodsRefused"
        assert "has 1 of 2 pods" in problem.message
        assert "kubectl describe statefulset tiny" in problem.message
        set_pods(stage, made=2)
        await until(lambda: not stage.driver.problems)

    play(scene)


def test_pods_that_are_still_being_made_are_no_problem() -> None:
    async def scene(stage: Stage) -> None:
        stage.driver.want({"tiny": server(replicas=2)})
        await until(lambda: stage.inventory.get((NS, "StatefulSet", "tiny")))
        set_pods(stage, made=0)
        await until(lambda: "tiny" in stage.driver._short)
        assert stage.driver.problems == {}
        stage.driver.want({})
        assert stage.driver._short == {}

    play(scene)


def test_streamed_weights_are_there_while_every_member_has_them() -> None:
    async def scene(stage: Stage) -> None:
        for name in ("tiny-0", "tiny-1"):
            stage.driver.see_pod(None, pod(name))
        first, second = (stage.driver._members[name] for name in ("tiny-0", "tiny-1"))
        streamed = GroupRecord(group="actor", serve=Serve(version=3, source="handoff/v3"))
        on_a_volume = GroupRecord(group="actor", serve=Serve(version=3, source="/var/lib/ebbtide-handoff/v3"))
        assert stage.driver.sources(streamed) == {"handoff/v3"}, "nobody said that it lacks them"
        first.agent.hear(state("tiny-0", received=[3]))
        second.agent.hear(state("tiny-1", received=[2]))
        assert stage.driver.sources(streamed) == frozenset()
        assert stage.driver.sources(on_a_volume) == {"/var/lib/ebbtide-handoff/v3"}
        second.agent.hear(state("tiny-1", received=[2, 3], state_version=1))
        assert stage.driver.sources(streamed) == {"handoff/v3"}
        second.agent.hear(None)
        assert stage.driver.sources(streamed) == {"handoff/v3"}, "what was last heard of a pod still holds"

    play(scene)


def test_pods_of_a_deleted_server_are_not_members_of_the_next_one_of_its_name() -> None:
    async def scene(stage: Stage) -> None:
        stage.driver.want({"tiny": server()})
        await until(lambda: stage.inventory.get((NS, "StatefulSet", "tiny")))
        made = stage.inventory.get((NS, "StatefulSet", "tiny"))
        assert made is not None
        stage.driver.see_pod(None, pod(owner=made.uid))
        assert stage.driver.uids("actor") == {"tiny-0": "uid-tiny-0"}
        stage.driver.want({"tiny": server(uid="another")})
        assert stage.driver.members("actor") == ()
        assert stage.driver.uids("actor") == {}
        stage.inventory.see(replace(made, uid="its set", owner="another", version=made.version + 1))
        assert stage.driver.members("actor") == (), "its pod is still to come"
        stage.driver.see_pod(pod(owner=made.uid), pod(uid="new", owner="its set"))
        assert [member.name for member in stage.driver.members("actor")] == ["tiny-0"]

    play(scene)
