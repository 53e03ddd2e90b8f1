"""One member of the local driver: its two processes, its agent's state, and the outcomes of calls to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.server import InferenceServer
from ebbtide_api.state import StateVector

from ebbtide_operator.plan import Call, MemberView, Outcome
from ebbtide_operator.settings import Settings

from .agents import AgentClient, AgentWatch, Unreachable, carry_out
from .birth import Birth, prepare
from .layout import Layout
from .processes import Program, Supervisor, adopt, end_strays, mark_of

log = logging.getLogger("ebbtide.member")
OUTCOMES_KEPT = 64
UNKNOWN_PAUSE = 0.2
"""Seconds that a member stays busy after a call that was not answered."""


class LocalMember:
    """A member of this machine. `changed` is called whenever its view may differ."""

    def __init__(
        self,
        name: str,
        server: InferenceServer,
        ordinal: int,
        layout: Layout,
        settings: Settings,
        changed: Callable[[], None],
    ) -> None:
        self.name, self.server, self.group, self.ordinal = name, server.name, server.group, ordinal
        self.ending = False
        self.born: Birth | None = None
        self._layout, self._settings, self._changed = layout, settings, changed
        self._state: StateVector | None = None
        self._last: StateVector | None = None
        self._heard_at: float | None = None
        self._busy: str | None = None
        self._outcomes: list[Outcome] = []
        self._failure = ""
        self._supervisors: list[Supervisor] = []
        self._client: AgentClient | None = None
        self._watch: AgentWatch | None = None

    def view(self) -> MemberView:
        """Return the member as plans see it."""
        return MemberView(
            name=self.name,
            server=self.server,
            ordinal=self.ordinal,
            state=self._state,
            last=self._last,
            busy=self._busy,
            outcomes=tuple(self._outcomes),
            heard=self._heard_at,
            trouble=self._failure or next((s.trouble for s in self._supervisors if s.trouble), ""),
        )

    # its processes

    async def start(self, server: InferenceServer) -> bool:
        """Run the member, adopting what an earlier operator left. False: it cannot be set up."""
        try:
            self.born = await asyncio.to_thread(prepare, server, self.ordinal, self._layout, self._settings.agent_ports)
        except OSError as error:
            self._failure = f"it cannot be set up: {error}"
            log.exception("%s cannot be set up", self.name)
            return False
        self._failure = ""
        config = self.born.config
        self._client = AgentClient(f"http://{config.host}:{config.agent_port}", self.born.token)
        self._watch = AgentWatch(self._client, self._heard)
        await self._supervise(self.born)
        self._watch.start()
        return True

    async def _supervise(self, born: Birth) -> None:
        programs = self._programs(born)
        adopted = [adopt(program) for program in programs]
        await end_strays(str(born.path), {running.pid for running in adopted if running})
        self._supervisors = [
            Supervisor(program, self._settings.restarts, self._process_changed) for program in programs
        ]
        for supervisor, running in zip(self._supervisors, adopted, strict=True):
            supervisor.start(running)

    def _programs(self, born: Birth) -> tuple[Program, Program]:
        home, commands = self._layout.member(self.name), self._settings.commands

        def program(kind: str, argv: tuple[str, ...], log_name: str) -> Program:
            return Program(
                name=f"{kind} of {self.name}",
                argv=(*argv, "--member", str(born.path)),
                log=home / log_name,
                mark=mark_of(home, kind),
                digest=born.digest,
                log_limit=self._settings.log_limit,
            )

        return program("agent", commands.agent, "agent.log"), program("launcher", commands.launcher, "engine.log")

    def _process_changed(self) -> None:
        if self._watch is not None:
            self._watch.again()
        self._changed()

    async def stop(self) -> None:
        """End the member's processes and everything that they started."""
        await self._unwatch()
        # The launcher first: while it ends its engine, the agent still answers.
        for supervisor in reversed(self._supervisors):
            await supervisor.stop(self._settings.stop_grace)
        if self.born is not None and (left := await end_strays(str(self.born.path), set())):
            log.error("these processes of %s cannot be ended: %s", self.name, [process.pid for process in left])
        self._supervisors, self._outcomes, self._busy = [], [], None

    async def leave(self) -> None:
        """Leave the processes running for the next operator."""
        await self._unwatch()
        for supervisor in self._supervisors:
            await supervisor.leave()

    async def _unwatch(self) -> None:
        if self._watch is not None:
            await self._watch.stop()
        if self._client is not None:
            await self._client.close()
        self._state = self._watch = self._client = None

    # its agent

    @property
    def client(self) -> AgentClient | None:
        """How to reach the agent; None while it does not answer."""
        return self._client if self._state is not None else None

    def _heard(self, state: StateVector | None) -> None:
        if state is not None and self.born is not None and state.instance.uid != self.born.config.uid:
            state = None  # somebody else answers on that port
        if state is not None:
            self._heard_at = time.monotonic()
        if state == self._state or (state and self._state and state.state_version < self._state.state_version):
            return  # no news, or an answer that was overtaken
        self._state, self._last = state, state or self._last
        self._changed()

    async def refresh(self, patience: float | None = None) -> None:
        """Ask the agent now. An agent that does not answer within `patience` seconds is believed as it was."""
        client = self._client
        if client is None or self._state is None:
            return
        try:
            async with asyncio.timeout(patience):
                self._heard(await client.state())
        except TimeoutError:
            log.debug("%s takes its time", self.name)
        except (Unreachable, EbbtideError) as error:
            log.debug("%s does not answer: %s", self.name, error)
            self._heard(None)

    async def call(self, call: Call) -> Outcome | None:
        """Make a call; while it runs the member is busy. None: its outcome is unknown, or it was not made."""
        client = self._client
        if client is None:
            return None
        if self._busy is not None:
            busy = EbbtideError(ErrorCode.OPERATION_IN_PROGRESS, f"{self.name} is busy with {self._busy}")
            return Outcome(call.base, time.monotonic(), error=busy.body())
        self._busy = call.base
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
