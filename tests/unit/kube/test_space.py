"""One namespace under the loop: what a changed, refused or lost object does, with a server in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.server import Handoff, InferenceServer
from ebbtide_api.verbs import LeaseStage
from ebbtide_operator.kube.cache import Cache
from ebbtide_operator.kube.kinds import LEASES, SERVERS, ApiError
from ebbtide_operator.kube.leasing import lease_name, record_of
from ebbtide_operator.kube.objects import Child
from ebbtide_operator.kube.site_views import effective, highest, problem_of, server_view
from ebbtide_operator.kube.space import Place, Space
from ebbtide_operator.plan import GroupRecord, LeaseRecord

from .fake_api import FakeApi
from .given import SITE, server
from .test_driver import until

NS = "models"
SHARED, STREAM = Handoff.SHARED_MEMORY, Handoff.STREAM
VOLUME = {"spec": {"volumes": [{"name": "ebbtide-handoff", "persistentVolumeClaim": {"claimName": "weights"}}]}}
LENT = GroupRecord(
    group="actor",
    epoch=4,
    owner="trainer",
    lease=LeaseRecord(id="l", holder="trainer", stage=LeaseStage.LENT, epoch=4, ttl_seconds=600),
)


class Stage:
    """A namespace on a server in memory, which tells of StatefulSets as a watch would."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.api = api
        self.inventory: Cache[Child] = Cache(lambda old, new: self.space.kube.see_child(old, new))
        self.space = Space(Place(api, SITE, lambda _pod: None, self.inventory, folder), NS)

    def put(self, which: InferenceServer) -> None:
        self.api.put(SERVERS, {"metadata": which.metadata.wire(), "spec": which.spec.wire()})
        self.space.put(which)

    def status(self, name: str = "tiny") -> Any:
        return self.api.objects["inferenceservers", NS, name].get("status", {})

    def record(self) -> Any:
        return record_of(self.api.objects["leases", NS, lease_name("actor")])


def play(folder: Path, scene: Callable[[Stage], Awaitable[None]], api: FakeApi | None = None, *given: Any) -> None:
    async def run() -> None:
        stage = Stage(api or FakeApi(), folder)
        await stage.space.open(given)
        try:
            await scene(stage)
        finally:
            await stage.space.stop()

    asyncio.run(run())


def test_a_server_gets_a_lease_that_goes_with_it_children_and_a_status(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(server())
        await until(lambda: stage.status().get("conditions"))
        lease = stage.api.objects["leases", NS, lease_name("actor")]
        assert [owner["name"] for owner in lease["metadata"]["ownerReferences"]] == ["tiny"]
        assert ("statefulsets", NS, "tiny") in stage.api.objects
        assert (stage.status()["owner"], stage.status()["epoch"]) == ("engine", 1)

    play(tmp_path, scene)


def test_the_same_object_again_is_no_news(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(server())
        await until(lambda: stage.status().get("conditions"))
        await asyncio.sleep(0.2)
        stage.api.written()
        stage.space.put(server())
        await asyncio.sleep(0.2)
        assert stage.api.written() == []

    play(tmp_path, scene)


def test_a_spec_that_cannot_be_carried_out_is_told_and_the_old_one_goes_on(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(server())
        await until(lambda: ("statefulsets", NS, "tiny") in stage.api.objects)
        stage.put(server(generation=2, engine={}))
        await until(lambda: stage.status().get("phase") == "ImageMissing")
        assert stage.status()["observedGeneration"] == 2
        assert stage.space.servers["tiny"].spec.engine.image
        stage.put(server(generation=3))
        await until(lambda: stage.status().get("phase") != "ImageMissing")

    play(tmp_path, scene)


def test_a_forgotten_server_is_wanted_no_more(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(server())
        await until(lambda: stage.status().get("conditions"))
        stage.space.forget("tiny")
        assert stage.space.servers == stage.space.asked == stage.space.views == {}
        stage.api.written()
        await asyncio.sleep(0.1)
        assert stage.api.written() == []

    play(tmp_path, scene)


def test_while_lent_no_member_comes_or_goes(tmp_path: Path) -> None:
    api = FakeApi()

    async def lend(stage: Stage) -> None:
        stage.put(server(replicas=2))
        await until(lambda: ("statefulsets", NS, "tiny") in api.objects)
        group = stage.space.groups["actor"]
        async with group.lock:
            await stage.space.save(group, LENT)
        stage.put(server(replicas=5, generation=2))
        assert stage.space.servers["tiny"].spec.replicas == 2
        await until(lambda: stage.status().get("observedGeneration") == 2)
        assert api.objects["statefulsets", NS, "tiny"]["spec"]["replicas"] == 2
        async with group.lock:
            await stage.space.save(group, LENT.end_lease(LeaseStage.RELEASED))
        assert stage.space.servers["tiny"].spec.replicas == 5
        await until(lambda: api.objects["statefulsets", NS, "tiny"]["spec"]["replicas"] == 5)

    play(tmp_path, lend, api)


def test_a_lent_group_is_lent_after_a_restart(tmp_path: Path) -> None:
    api = FakeApi()

    async def lend(stage: Stage) -> None:
        stage.put(server())
        await until(lambda: stage.status().get("conditions"))
        group = stage.space.groups["actor"]
        async with group.lock:
            await stage.space.save(group, LENT)

    async def again(stage: Stage) -> None:
        record = stage.space.groups["actor"].record
        assert (record.owner, record.epoch, record.lease and record.lease.stage) == ("trainer", 4, LeaseStage.LENT)

    play(tmp_path, lend, api)
    play(tmp_path, again, api, server())


@pytest.mark.parametrize("what", ["deleted", "edited", "missed"])
def test_a_lease_that_somebody_touched_is_set_right_above_its_epoch(tmp_path: Path, what: str) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(server())
        await until(lambda: stage.status().get("conditions"))
        group = stage.space.groups["actor"]
        async with group.lock:
            await stage.space.save(group, LENT)
        lease = stage.api.objects["leases", NS, lease_name("actor")]
        if what == "edited":
            changed = stage.api.put(LEASES, {**lease, "spec": {**lease["spec"], "leaseTransitions": 9}})
            stage.space.see_lease(changed)
        else:
            del stage.api.objects["leases", NS, lease_name("actor")]
            gone = {**lease, "metadata": {**lease["metadata"], "resourceVersion": "99999"}}
            if what == "deleted":
                stage.space.see_lease(gone, deleted=True)
            else:
                stage.space.check_leases([], 99999)
        await until(lambda: stage.space.groups["actor"].record.epoch > (9 if what == "edited" else 4))
        await until(lambda: ("leases", NS, lease_name("actor")) in stage.api.objects)
        await until(lambda: stage.record() == stage.space.groups["actor"].record)
        assert stage.record().lease is None or stage.record().lease.stage is LeaseStage.OWNER_LOST

    play(tmp_path, scene)


def test_a_race_that_is_lost_takes_the_winners_record(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(server())
        await until(lambda: stage.status().get("conditions"))
        other = Stage(stage.api, tmp_path)
        await other.space.open([server()])
        theirs = other.space.groups["actor"]
        async with theirs.lock:
            await other.space.save(theirs, LENT)
        mine = stage.space.groups["actor"]
        with pytest.raises(OSError, match="was changed"):
            async with mine.lock:
                await stage.space.save(mine, mine.record.model_copy(update={"epoch": 2}))
        assert mine.record == LENT
        await other.space.stop()

    play(tmp_path, scene)


def test_a_status_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.api.fail["apply/status"] = [ApiError(503, "Busy", "later")]
        stage.put(server())
        await until(lambda: stage.status().get("conditions"))

    play(tmp_path, scene)


# views


def test_plans_know_the_device_and_its_size() -> None:
    plain = server_view(server())
    assert (plain.device, plain.budget_mib, plain.apart) == ("cpu0", 4096, True)
    claimed = server_view(server(colocation={"devices": {"claim": "gpus"}}))
    assert (claimed.device, claimed.budget_mib, claimed.apart) == ("claim:gpus", 0, False)


def test_members_stay_while_memory_is_lent() -> None:
    asked = server(replicas=3)
    assert effective(asked, 2, held=True).spec.replicas == 2
    assert effective(asked, None, held=True) is asked
    assert effective(asked, 2, held=False) is asked


def test_a_cluster_honours_what_local_mode_does_not_and_names_the_rest() -> None:
    template = {"spec": {"nodeSelector": {"a": "b"}}}
    assert problem_of(server(awakeReplicas=0, template=template, weights={"handoff": "Stream"})) is None
    problem = problem_of(server(cachePolicy={"name": "default"}))
    assert problem is not None
    assert (problem.reason, "spec.cachePolicy" in problem.message) == ("NotYetSupported", True)


def test_the_highest_epoch_of_a_group_is_told_with_its_owner() -> None:
    def told(epoch: int, owner: str) -> InferenceServer:
        return InferenceServer.model_validate({**server().wire(), "status": {"epoch": epoch, "owner": owner}})

    assert highest([server(), told(3, "engine"), told(7, "trainer")]) == (7, "trainer")
    assert highest([server()]) == (0, "")


def test_why_names_a_spec_that_is_not_carried_out(tmp_path: Path) -> None:
    from ebbtide_operator.views import why_view

    async def scene(stage: Stage) -> None:
        stage.put(server())
        await until(lambda: bool(stage.space.groups["actor"].why))
        assert stage.space.refusal("tiny") is None
        stage.put(server(generation=2, weights={"handoff": "Disk"}))
        await until(lambda: stage.space.refusal("tiny") is not None)
        found = stage.space.find("tiny")
        assert found is not None
        why = why_view(stage.space, found)
        assert why.settled is False
        assert why.obstacles[0].reason == "HandoffVolumeMissing"
        assert "ebbtide-handoff" in why.obstacles[0].message
        assert "kubectl -n models describe inferenceserver tiny" in why.obstacles[0].next_action

    play(tmp_path, scene)


def test_a_group_takes_weights_in_one_way_and_the_oldest_server_says_which(tmp_path: Path) -> None:
    def made(name: str, day: int, handoff: str | None) -> InferenceServer:
        found = server(name, uid=f"uid-{name}", weights={"handoff": handoff}, template=VOLUME)
        created = f"2026-01-0{day}T00:00:00Z"
        return found.model_copy(update={"metadata": found.metadata.model_copy(update={"creation_timestamp": created})})

    async def scene(stage: Stage) -> None:
        def reasons() -> dict[str, str]:
            problems = {name: stage.space.problem(name) for name in ("old", "young", "aside")}
            return {name: problem.reason for name, problem in problems.items() if problem}

        stage.put(made("young", 2, "SharedMemory"))
        stage.put(made("aside", 3, "None"))
        assert reasons() == {}
        stage.put(made("old", 1, None))
        assert reasons() == {"young": "HandoffMixed"}
        problem = stage.space.problem("young")
        assert problem is not None
        assert "young takes new weights by SharedMemory and old by Stream" in problem.message
        await until(lambda: any(one["reason"] == "HandoffMixed" for one in stage.status("young").get("conditions", [])))
        assert stage.space.ways_of("actor") == {"aside": Handoff.NONE, "old": STREAM, "young": SHARED}, "as they run"
        stage.put(made("young", 2, "Stream"))
        assert reasons() == {}
        # Both change, the younger one first: neither waits for the other for ever.
        stage.put(made("young", 2, "SharedMemory"))
        assert reasons() == {"young": "HandoffMixed"}
        stage.put(made("old", 1, "SharedMemory"))
        assert reasons() == {}
        stage.put(made("young", 2, "Stream"))
        assert reasons() == {"young": "HandoffMixed"}
        assert stage.space.ways_of("actor")["young"] is SHARED, "what runs stays as it is"
        stage.space.forget("old")
        assert reasons() == {}
        assert stage.space.ways_of("actor")["young"] is STREAM

    play(tmp_path, scene)
