"""One member on a cluster: its pod, its agent's state, and the outcomes of calls to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import StateVector

from ebbtide_operator.drive.agents import AgentClient, AgentWatch, Unreachable, carry_out
from ebbtide_operator.plan import Call, MemberView, Outcome

from .objects import Pod

log = logging.getLogger("ebbtide.member")
OUTCOMES_KEPT = 64
Reach = Callable[[Pod], AgentClient | None]
"""Return a client of a pod's agent; None while it cannot be reached: it has no address, or did not enrol yet."""


Led = Callable[[int, bool], None]
"""Hears of the highest operator's epoch that an agent has seen, and whether that may be ours: we have called it."""


class PodMember:
    """A member in a pod; another pod of that name is another member. `changed` is called when its view may differ."""

    def __init__(
        self, pod: Pod, reach: Reach, changed: Callable[[], None], led: Led = lambda _epoch, _ours: None
    ) -> None:
        self.pod, self._led, self._called = pod, led, False
        self._reach, self._changed = reach, changed
        self._state: StateVector | None = None
        self._last: StateVector | None = None
        self._heard_at: float | None = None
        self._busy: str | None = None
        self._outcomes: list[Outcome] = []
        self._client: AgentClient | None = None
        self._watch: AgentWatch | None = None

    def view(self, *, outdated: bool) -> MemberView:
        """Return the member as plans see it."""
        return MemberView(
            name=self.pod.name,
            server=self.pod.server,
            ordinal=self.pod.ordinal,
            outdated=outdated and not self.pod.deleting,
            state=self._state,
            last=self._last,
            busy=self._busy,
            outcomes=tuple(self._outcomes),
            heard=self._heard_at,
            trouble=self.pod.trouble,
        )

    def has(self, version: int) -> bool:
        """Say whether a streamed version was in the member's own memory when it was last heard of."""
        return self._last is None or version in self._last.received

    async def see(self, pod: Pod) -> None:
        """Take the pod as it is now. Its address may have come, or gone with a restart of the whole pod."""
        moved = pod.ip != self.pod.ip
        self.pod = pod
        if moved:
            await self.close()
        self.connect()
        self._changed()

    def connect(self) -> None:
        """Follow the agent, if it can be reached and is not followed yet."""
        if self._client is None and (client := self._reach(self.pod)):
            self._client = client
            self._watch = AgentWatch(client, self._heard)
            self._watch.start()

    async def close(self) -> None:
        """Stop following the agent."""
        watch, client = self._watch, self._client
        self._state = self._watch = self._client = None
        if watch is not None:
            await watch.stop()
        if client is not None:
            await client.close()

    def agent(self) -> AgentClient | None:
        """Return how to call the agent, which may know us from now on; None while it does not answer."""
        self._called = self._called or self._state is not None
        return self._client if self._state is not None else None

    def _heard(self, state: StateVector | None) -> None:
        # With another UID, the address is another pod's by now.
        ours = state is not None and state.instance.uid == self.pod.uid
        state = state.model_copy(update={"url": self._url(state)}) if state and ours else None
        if state is not None:
            self._heard_at = time.monotonic()
        if state == self._state or (state and self._state and state.state_version < self._state.state_version):
            return  # no news, or an answer that was overtaken
        if state is not None:
            self._led(state.leader, self._called)
        self._state, self._last = state, state or self._last
        self._changed()

    def _url(self, state: StateVector) -> str:
        """Agents know their port, and not the address by which others reach it."""
        host = f"[{self.pod.ip}]" if ":" in self.pod.ip else self.pod.ip
        return f"http://{host}:{state.url.rpartition(':')[2]}" if state.url else ""

    async def refresh(self) -> None:
        """Ask the agent now."""
        client = self._client
        if client is None or self._state is None:
            return
        try:
            self._heard(await client.state())
        except (Unreachable, EbbtideError) as error:
            log.debug("%s does not answer: %s", self.pod.name, error)
            self._heard(None)

    async def call(self, call: Call) -> Outcome | None:
        """Make a call; while it runs the member is busy. None: its outcome is unknown, or it was not made."""
        client = self._client
        if client is None:
            return None
        if self._busy is not None:
            busy = EbbtideError(ErrorCode.OPERATION_IN_PROGRESS, f"{self.pod.name} is busy with {self._busy}")
            return Outcome(call.base, time.monotonic(), error=busy.body())
        self._busy, self._called = call.base, True
        try:
            outcome = await carry_out(client, call)
            # What the call did must be seen before the next plan: it was made for the state before.
            await self.refresh()
            if outcome is not None:
                self._outcomes = [*self._outcomes, outcome][-OUTCOMES_KEPT:]
            return outcome
        finally:
            self._busy = None
            self._changed()


async def close_all(members: list[PodMember]) -> None:
    """Stop following every agent; the pods stay."""
    await asyncio.gather(*(member.close() for member in members))
