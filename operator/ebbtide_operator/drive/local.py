"""The local driver: members are processes of this machine, their memory a folder of its memory-backed file system."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path

from ebbtide_api.member import RECEIVED
from ebbtide_api.server import InferenceServer

from ebbtide_operator.plan import Call, GroupRecord, MemberView, Outcome, TrainerView
from ebbtide_operator.settings import Settings
from ebbtide_operator.specs import is_on_gpu, is_streamed

from . import birth
from .agents import AgentClient
from .base import Changed
from .files import private_folder
from .layout import Layout
from .member import LocalMember
from .memory import Trainer, exists, start_of
from .processes import end_strays

log = logging.getLogger("ebbtide.local")
REFRESH_PATIENCE = 1.0
"""Seconds that somebody who only looks waits for an agent's newest measurement."""
SETUP_RETRY = 2.0
"""Seconds between two tries to make a member's folders and files."""
TRAINERS_KEPT = 64


class LocalDriver:
    """Runs every member of one home as two processes: an agent and a launcher."""

    def __init__(self, settings: Settings, layout: Layout) -> None:
        self.layout = layout
        self._settings = settings
        self._changed: Changed = lambda _group: None
        self._servers: Mapping[str, InferenceServer] = {}
        self._members: dict[str, LocalMember] = {}
        self._outdated: set[str] = set()
        self._trainers: dict[str, Trainer] = {}
        self._tasks: set[asyncio.Task[object]] = set()

    def listen(self, changed: Changed) -> None:
        """Say whom to tell of changes."""
        self._changed = changed

    async def open(self) -> bool:
        """Make the folders, and end what an earlier operator left of members that nobody wants. Raises OSError.

        Return whether the memory folder is new: then every published version is gone.
        """
        fresh = not self.layout.memory.exists()
        for folder in (self.layout.home, self.layout.memory, self.layout.members):
            private_folder(folder)
        wanted = {f"{server.name}-{n}" for server in self._servers.values() for n in range(server.spec.replicas)}
        for home in sorted(self.layout.members.iterdir()):
            if home.name not in wanted:
                await self._remove(home.name)
        return fresh

    async def _remove(self, name: str) -> None:
        left = await end_strays(str(self.layout.member(name) / "member.json"), set())
        if left:
            log.error("these processes of %s cannot be ended: %s", name, [process.pid for process in left])
        await asyncio.to_thread(shutil.rmtree, self.layout.member_memory(name), ignore_errors=True)
        birth.forget_weights(self.layout.member(name))

    # what is seen

    def want(self, servers: Mapping[str, InferenceServer]) -> None:
        """Take the servers that are wanted from now on."""
        self._servers = dict(servers)
        for member in self._members.values():
            self._compare(member)

    def members(self, group: str) -> tuple[MemberView, ...]:
        """Return every member of a group that exists."""
        return tuple(self._view(member) for member in self._members.values() if member.group == group)

    def _view(self, member: LocalMember) -> MemberView:
        return replace(member.view(), outdated=member.name in self._outdated and not member.ending)

    def _compare(self, member: LocalMember) -> None:
        """Note whether a member runs as its server asks now."""
        server, born = self._servers.get(member.server), member.born
        known = server is not None and born is not None and member.ordinal < server.spec.replicas
        fits = not known or (server and born and birth.wanted(server, member.ordinal, self.layout, born))
        (self._outdated.discard if fits else self._outdated.add)(member.name)

    async def refresh(self, group: str) -> None:
        """Ask every agent of a group now."""
        members = [member for member in self._members.values() if member.group == group]
        await asyncio.gather(*(member.agent.refresh(REFRESH_PATIENCE) for member in members))

    async def trainer(self, record: GroupRecord) -> TrainerView | None:
        """Measure a lease's processes. Without a pid nothing can be known of them.

        What was measured is their own memory. Of a GPU that says nothing, but that a process that is gone frees it.
        """
        lease = record.lease
        if lease is None or lease.pid is None:
            return None
        trainer = self._trainers.get(lease.id)
        if trainer is None:
            trainer = self._trainers[lease.id] = Trainer(lease.pid, lease.pid_start)
            while len(self._trainers) > TRAINERS_KEPT:
                del self._trainers[next(iter(self._trainers))]
        measured = await asyncio.to_thread(trainer.measure)
        return replace(measured, used_mib=None) if measured.alive and self._on_gpus(record.group) else measured

    def _on_gpus(self, group: str) -> bool:
        return any(is_on_gpu(server) for server in self._servers.values() if server.group == group)

    def sources(self, record: GroupRecord) -> frozenset[str]:
        """Return which folders of published weights that a record names are there."""
        back = record.lease.back if record.lease else None
        named = {record.serve.source, (back.source or "") if back else ""}
        return frozenset(path for path in named if path and self._is_there(record.group, path))

    def _is_there(self, group: str, path: str) -> bool:
        # A relative path is in every member's own memory. A member that lacks it cannot catch up: then nobody tries.
        names = [member.name for member in self._members.values() if member.group == group]
        places = [str(self.layout.member_memory(name) / path) for name in names] if path[0] != "/" else [path]
        return bool(places) and all(exists(place) for place in places)

    def handoff(self, group: str) -> str:
        """Return the folder in which a trainer publishes weights for a group; a relative one where they are sent."""
        return RECEIVED if self.streams(group) else str(self.layout.handoff(group))

    def streams(self, group: str) -> bool:
        """Say whether weights of a group are sent to its members' agents."""
        return any(is_streamed(server) for server in self._servers.values() if server.group == group)

    def agents(self, group: str) -> Mapping[str, AgentClient | None]:
        """Return how to reach the agent of every member of a group; None where it cannot be reached now."""
        members = [member for member in self._members.values() if member.group == group and not member.ending]
        return {member.name: member.agent.client() for member in members}

    # what is done

    def ensure(self, name: str, server: str, ordinal: int) -> None:
        """Begin to run a member, or run it again with its new configuration."""
        spec, member = self._servers[server], self._members.get(name)
        if member is not None and member.ending:
            return
        if member is not None:
            self._outdated.discard(name)
            self._spawn(self._renew(member, spec))
            return
        made = LocalMember(name, spec, ordinal, self.layout, self._settings, lambda: self._changed(spec.group))
        self._members[name] = made
        self._spawn(self._bring_up(made, spec))

    async def _bring_up(self, member: LocalMember, spec: InferenceServer) -> None:
        while not member.ending and not await member.start(spec):
            self._changed(member.group)
            await asyncio.sleep(SETUP_RETRY)
        self._compare(member)
        self._changed(member.group)

    async def _renew(self, member: LocalMember, spec: InferenceServer) -> None:
        await member.stop()
        await self._bring_up(member, spec)

    def end(self, name: str) -> None:
        """Begin to end a member."""
        member = self._members[name]
        if not member.ending:
            member.ending = True
            self._spawn(self._take_down(member))

    async def _take_down(self, member: LocalMember) -> None:
        await member.stop()
        await self._remove(member.name)
        del self._members[member.name]
        self._changed(member.group)

    def call(self, call: Call) -> None:
        """Begin a call."""
        self._spawn(self._members[call.member].agent.call(call))

    async def ask(self, call: Call) -> Outcome | None:
        """Make a call and wait for its outcome."""
        return await self._members[call.member].agent.call(call)

    def started_at(self, pid: int) -> int | None:
        """Return when a process started; None when there is none of that pid."""
        return start_of(pid)

    def retire(self, group: str, version: int) -> None:
        """Remove what was handed off up to a version; a trainer's half-written next one stays."""
        received = [
            self.layout.member_memory(member.name) / RECEIVED
            for member in self._members.values()
            if member.group == group
        ]
        for folder in (self.layout.handoff(group), *received):
            self._spawn(asyncio.to_thread(_remove_versions, folder, version))

    def _spawn(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a task of the driver failed", exc_info=error)

    async def stop(self, *, keep: bool) -> None:
        """End everything and free the memory folder, or leave all of it for the next operator."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if keep:
            await asyncio.gather(*(member.leave() for member in self._members.values()))
            return
        await asyncio.gather(*(member.stop() for member in self._members.values()))
        for member in self._members.values():
            await self._remove(member.name)
        await asyncio.to_thread(shutil.rmtree, self.layout.memory, ignore_errors=True)


def _remove_versions(folder: Path, version: int) -> None:
    for path in folder.glob("v*"):
        if path.name[1:].isdigit() and int(path.name[1:]) <= version:
            shutil.rmtree(path, ignore_errors=True)
