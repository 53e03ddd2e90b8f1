"""One member on a cluster: its pod, and its agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ebbtide_api.state import StateVector

from ebbtide_operator.drive.agents import AgentClient
from ebbtide_operator.drive.follow import FollowedAgent
from ebbtide_operator.plan import MemberView

from .objects import Pod

Reach = Callable[[Pod], AgentClient | None]
"""Return a client of a pod's agent; None while it cannot be reached: it has no address, or did not enrol yet."""


Led = Callable[[int, bool], None]
"""Hears of the highest operator's epoch that an agent has seen, and whether that may be ours: we have called it."""


class PodMember:
    """A member in a pod; another pod of that name is another member. `changed` is called when its view may differ."""

    def __init__(
        self, pod: Pod, reach: Reach, changed: Callable[[], None], led: Led = lambda _epoch, _ours: None
    ) -> None:
        self.pod = pod
        self.agent = FollowedAgent(pod.name, changed, self._believe, self._news)
        self._reach, self._changed, self._led = reach, changed, led

    def view(self, *, outdated: bool) -> MemberView:
        """Return the member as plans see it."""
        pod = self.pod
        outdated = outdated and not pod.deleting
        return self.agent.show(MemberView(pod.name, pod.server, pod.ordinal, outdated=outdated, trouble=pod.trouble))

    def has(self, version: int) -> bool:
        """Say whether a streamed version was in the member's own memory when it was last heard of."""
        return self.agent.last is None or version in self.agent.last.received

    async def see(self, pod: Pod) -> None:
        """Take the pod as it is now. Its address may have come, or gone with a restart of the whole pod."""
        moved = pod.ip != self.pod.ip
        self.pod = pod
        if moved:
            await self.agent.close()
        self.connect()
        self._changed()

    def connect(self) -> None:
        """Follow the agent, if it can be reached and is not followed yet."""
        if not self.agent.followed and (client := self._reach(self.pod)):
            self.agent.follow(client)

    def _believe(self, state: StateVector) -> StateVector | None:
        # With another UID, the address is another pod's by now.
        return state.model_copy(update={"url": self._url(state)}) if state.instance.uid == self.pod.uid else None

    def _news(self, state: StateVector) -> None:
        self._led(state.leader, self.agent.called)

    def _url(self, state: StateVector) -> str:
        """Agents know their port, and not the address by which others reach it."""
        host = f"[{self.pod.ip}]" if ":" in self.pod.ip else self.pod.ip
        return f"http://{host}:{state.url.rpartition(':')[2]}" if state.url else ""


async def close_all(members: list[PodMember]) -> None:
    """Stop following every agent; the pods stay."""
    await asyncio.gather(*(member.agent.close() for member in members))
