"""One member of the local driver: its two processes, and its agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ebbtide_api.server import InferenceServer
from ebbtide_api.state import StateVector

from ebbtide_operator.plan import MemberView
from ebbtide_operator.settings import Settings

from .agents import AgentClient
from .birth import Birth, prepare
from .follow import FollowedAgent
from .layout import Layout
from .processes import Program, Supervisor, adopt, end_strays, mark_of

log = logging.getLogger("ebbtide.member")


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
        self._failure = ""
        self._supervisors: list[Supervisor] = []
        self.agent = FollowedAgent(name, changed, self._believe)

    def view(self) -> MemberView:
        """Return the member as plans see it."""
        trouble = self._failure or next((s.trouble for s in self._supervisors if s.trouble), "")
        return self.agent.show(MemberView(self.name, self.server, self.ordinal, trouble=trouble))

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
        await self._supervise(self.born)
        self.agent.follow(AgentClient(f"http://{config.host}:{config.agent_port}", self.born.token))
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
        self.agent.again()
        self._changed()

    async def stop(self) -> None:
        """End the member's processes and everything that they started."""
        await self.agent.close()
        # The launcher first: while it ends its engine, the agent still answers.
        for supervisor in reversed(self._supervisors):
            await supervisor.stop(self._settings.stop_grace)
        if self.born is not None and (left := await end_strays(str(self.born.path), set())):
            log.error("these processes of %s cannot be ended: %s", self.name, [process.pid for process in left])
        self._supervisors = []
        self.agent.forget()

    async def leave(self) -> None:
        """Leave the processes running for the next operator."""
        await self.agent.close()
        for supervisor in self._supervisors:
            await supervisor.leave()

    def _believe(self, state: StateVector) -> StateVector | None:
        # With another UID, somebody else answers on that port.
        return state if self.born is None or state.instance.uid == self.born.config.uid else None
