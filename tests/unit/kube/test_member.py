"""One member on a cluster: a pod's agent, which is followed as any other."""

import asyncio
from typing import Any

from ebbtide_api.verbs import SleepRequest, Verb
from ebbtide_operator.drive.agents import Unreachable
from ebbtide_operator.drive.follow import UNKNOWN_PAUSE
from ebbtide_operator.kube.member import PodMember
from ebbtide_operator.plan import Call

from .given import server
from .test_driver import Forgetful, Stage, play, pod, until
from .views import state


def test_the_leader_hears_what_agents_have_seen_and_whether_it_may_be_itself() -> None:
    client, heard = Forgetful(fails=False), list[tuple[int, bool]]()

    async def scene(stage: Stage) -> None:
        member = PodMember(pod(), lambda _pod: client, lambda: None, lambda *told: heard.append(told))  # type: ignore[arg-type,return-value]
        member.agent.hear(state(leader=3, state_version=1))
        member.agent.client()
        member.agent.hear(None)
        member.agent.hear(state(leader=4, state_version=2))
        member.agent.hear(state("other-0", leader=9, state_version=3))
        assert heard == [(3, False), (4, True)]

    play(scene)


def test_a_member_stays_busy_a_while_after_a_call_that_nobody_answered() -> None:
    class Silent(Forgetful):
        calls = 0

        async def begin(self, call: Call) -> Any:
            self.calls += 1
            raise Unreachable("the answer was lost")

    client = Silent(fails=False)

    async def scene(stage: Stage) -> None:
        stage.driver._reach = lambda _pod: client  # type: ignore[assignment,return-value]
        stage.driver.want({"tiny": server()})
        stage.driver.see_pod(None, pod())
        await until(lambda: stage.driver.agents("actor")["tiny-0"] is client)
        sleep = Call("tiny-0", Verb.SLEEP, SleepRequest(), "base", "key", 1, "", 5.0)
        calling = asyncio.create_task(stage.driver.ask(sleep))
        # As a loop that plans anew with every change: the same call, as soon as the member is not busy.
        ends = asyncio.get_running_loop().time() + UNKNOWN_PAUSE / 2
        while asyncio.get_running_loop().time() < ends:
            if calling.done():
                calling = asyncio.create_task(stage.driver.ask(sleep))
            await asyncio.sleep(0)
        assert client.calls == 1
        assert stage.driver.members("actor")[0].busy == "base"
        assert await calling is None
        assert stage.driver.members("actor")[0].busy is None

    play(scene)
