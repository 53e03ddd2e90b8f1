"""The cluster's driver when the template changes: which pod it replaces, and when."""

import asyncio

from .given import server
from .test_driver import NS, Stage, play, pod, until


def test_a_new_operator_waits_for_agents_to_enrol_before_it_replaces_their_pods() -> None:
    async def scene(stage: Stage) -> None:
        stage.driver.want({"tiny": server(replicas=2)})
        await until(lambda: stage.inventory.get((NS, "StatefulSet", "tiny")))
        for name in ("tiny-0", "tiny-1"):
            version = int(stage.put_pod(name)["metadata"]["resourceVersion"])
            stage.driver.see_pod(None, pod(name, revision="old", version=version, ready=False))
        stage.api.written()
        began = asyncio.get_running_loop().time()
        stage.set_revision("new")
        await until(lambda: [name for verb, _, name in stage.api.written() if verb == "delete"])
        assert asyncio.get_running_loop().time() - began > 0.3

    play(scene, hearing=0.5)


def test_a_pod_that_leaves_is_not_counted_on_though_it_still_serves() -> None:
    async def scene(stage: Stage) -> None:
        wanted = server(replicas=2)
        stage.driver.want({"tiny": wanted})
        await until(lambda: stage.inventory.get((NS, "StatefulSet", "tiny")))
        for name in ("tiny-0", "tiny-1"):
            version = int(stage.put_pod(name)["metadata"]["resourceVersion"])
            stage.driver.see_pod(None, pod(name, revision="old", version=version))
        deleted: list[str] = []

        async def roll() -> list[str]:
            await stage.driver._roll(wanted)
            deleted.extend(name for verb, _, name in stage.api.written() if verb == "delete")
            return deleted

        stage.held.add("actor")  # nobody rolls but this test
        stage.set_revision("new")
        assert await roll() == ["tiny-1"]
        assert await roll() == ["tiny-1"], "its end was asked for, and not seen yet"
        leaving = pod("tiny-1", revision="old", deleting=True)
        stage.driver.see_pod(pod("tiny-1", revision="old"), leaving)
        await until(lambda: stage.driver._members["tiny-1"].pod.deleting)
        assert await roll() == ["tiny-1"], "the kubelet says Ready until the last container ends"
        stage.driver.see_pod(leaving, pod("tiny-1", uid="next", ready=False))
        assert await roll() == ["tiny-1"]
        stage.driver.see_pod(pod("tiny-1", uid="next", ready=False), pod("tiny-1", uid="next"))
        await until(lambda: stage.driver._members["tiny-1"].pod.ready)
        assert await roll() == ["tiny-1", "tiny-0"]

    play(scene)
