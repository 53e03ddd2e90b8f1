"""The agent of one member, followed: its newest state, and the outcomes of calls to it. A process's, or a pod's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import StateVector

from ebbtide_operator.plan import Call, MemberView, Outcome

from .agents import AgentClient, AgentWatch, Unreachable, carry_out

log = logging.getLogger("ebbtide.member")
OUTCOMES_KEPT = 64
UNKNOWN_PAUSE = 0.2
"""Seconds that a member stays busy after a call that was not answered."""

Believe = Callable[[StateVector], StateVector | None]
"""Return a state as the member's; None when somebody else answered."""


class FollowedAgent:
    """What is known of an agent. `changed` is called when that differs, `news` before that with each new state."""

    def __init__(
        self,
        name: str,
        changed: Callable[[], None],
        believe: Believe,
        news: Callable[[StateVector], None] = lambda _state: None,
    ) -> None:
        self.last: StateVector | None = None
        self.called = False
        """Whether we called it, or gave its client away: then it may know us."""
        self._name, self._changed, self._believe, self._news = name, changed, believe, news
        self._state: StateVector | None = None
        self._heard_at: float | None = None
        self._busy: str | None = None
        self._outcomes: list[Outcome] = []
        self._client: AgentClient | None = None
        self._watch: AgentWatch | None = None

    def show(self, member: MemberView) -> MemberView:
        """Return a member as plans see it, with what is known of its agent."""
        return replace(
            member,
            state=self._state,
            last=self.last,
            busy=self._busy,
            outcomes=tuple(self._outcomes),
            heard=self._heard_at,
        )

    def client(self) -> AgentClient | None:
        """Return how to call the agent; None while it does not answer."""
        self.called = self.called or self._state is not None
        return self._client if self._state is not None else None

    # following it

    @property
    def followed(self) -> bool:
        """Whether it can be reached, as far as is known."""
        return self._client is not None

    def follow(self, client: AgentClient) -> None:
        """Hear of every change from now on."""
        self._client = client
        self._watch = AgentWatch(client, self.hear)
        self._watch.start()

    def again(self) -> None:
        """Ask again at once: the agent was just started."""
        if self._watch is not None:
            self._watch.again()

    async def close(self) -> None:
        """Stop following."""
        watch, client = self._watch, self._client
        self._state = self._watch = self._client = None
        if watch is not None:
            await watch.stop()
        if client is not None:
            await client.close()

    def forget(self) -> None:
        """Forget every call: the processes that were called are gone."""
        self._outcomes, self._busy = [], None

    def hear(self, state: StateVector | None) -> None:
        """Take what was answered; None when nothing was."""
        state = self._believe(state) if state is not None else None
        if state is not None:
            self._heard_at = time.monotonic()
        if state == self._state or (state and self._state and state.state_version < self._state.state_version):
            return  # no news, or an answer that was overtaken
        if state is not None:
            self._news(state)
        self._state, self.last = state, state or self.last
        self._changed()

    # asking it

    async def refresh(self, patience: float | None = None) -> None:
        """Ask the agent now. An agent that does not answer within `patience` seconds is believed as it was."""
        client = self._client
        if client is None or self._state is None:
            return
        try:
            async with asyncio.timeout(patience):
                self.hear(await client.state())
        except TimeoutError:
            log.debug("%s takes its time", self._name)
        except (Unreachable, EbbtideError) as error:
            log.debug("%s does not answer: %s", self._name, error)
            self.hear(None)

    async def call(self, call: Call) -> Outcome | None:
        """Make a call; while it runs the member is busy. None: its outcome is unknown, or it was not made."""
        client = self._client
        if client is None:
            return None
        if self._busy is not None:
            busy = EbbtideError(ErrorCode.OPERATION_IN_PROGRESS, f"{self._name} is busy with {self._busy}")
            return Outcome(call.base, time.monotonic(), error=busy.body())
        self._busy, self.called = call.base, True
        try:
            outcome = await carry_out(client, call)
            # What the call did must be seen before the next plan: it was made for the state before.
            await self.refresh()
            if outcome is None:
                # Nothing is known of it, and the same call will be made again: not in a tight loop.
                await asyncio.sleep(UNKNOWN_PAUSE)
            else:
                self._outcomes = [*self._outcomes, outcome][-OUTCOMES_KEPT:]
            return outcome
        finally:
            self._busy = None
            self._changed()
