"""The cluster's driver: members are pods of StatefulSets, reached over HTTPS. One for each namespace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass

from ebbtide_api.errors import EbbtideError
from ebbtide_api.server import Handoff, InferenceServer
from ebbtide_api.verbs import LeaseStage

from ebbtide_operator.drive.agents import AgentClient, Unreachable
from ebbtide_operator.drive.base import Changed
from ebbtide_operator.plan import Call, GroupRecord, MemberView, Outcome, TrainerView
from ebbtide_operator.queue import WorkQueue
from ebbtide_operator.specs import awake_of

from .apply import Applier
from .children import Problem, first_problem, pods_refused
from .children.member import handoff_folder, handoff_of
from .holders import holders_of
from .kinds import PODS, SETS, Api, ApiError
from .member import Led, PodMember, Reach, close_all
from .objects import Child, Pod
from .rollout import next_to_replace

log = logging.getLogger("ebbtide.kube")
RETRY = 1.0
"""Seconds until a server whose children's names are taken is looked at again."""
PATIENCE = 10.0
"""Seconds that a StatefulSet may take to make its pods; it takes none where nothing refuses them."""
HEARING = 60.0
"""Seconds in which every agent that lives has enrolled at a new operator: until then, silence tells nothing."""


@dataclass(frozen=True)
class Ask:
    """What a driver asks others."""

    reach: Reach
    """How to reach a pod's agent."""
    held: Callable[[str], bool]
    """Whether a group's servers must stay as they are: their memory is lent, or on its way."""
    led: Led = lambda _epoch, _ours: None
    """Whom to tell which operator an agent follows."""
    hearing: float = HEARING
    """How long agents that were never heard get to enrol before their pods count as broken."""


class KubeDriver:
    """See drive.base.Driver."""

    def __init__(self, api: Api, namespace: str, applier: Applier, ask: Ask) -> None:
        self.problems: dict[str, Problem] = {}
        self._api, self._namespace, self._applier = api, namespace, applier
        self._reach, self._held, self._led = ask.reach, ask.held, ask.led
        self._born, self._hearing = time.monotonic(), ask.hearing
        self._changed: Changed = lambda _group: None
        self._servers: dict[str, InferenceServer] = {}
        self._members: dict[str, PodMember] = {}
        self._groups: dict[str, set[str]] = {}
        self._deleting: set[str] = set()
        self._short: dict[str, float] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._queue = WorkQueue(self._sync)

    # what is seen

    def listen(self, changed: Changed) -> None:
        """Say whom to tell of changes."""
        self._changed = changed

    def want(self, servers: Mapping[str, InferenceServer]) -> None:
        """Take the servers that are wanted from now on."""
        for name in set(servers) | set(self._servers):
            self.want_one(name, servers.get(name))

    def want_one(self, name: str, server: InferenceServer | None) -> None:
        """Take one server that is wanted, or is not any more."""
        if server == self._servers.get(name):
            return
        if server is None:
            self._servers.pop(name, None)
            self.problems.pop(name, None)
            self._short.pop(name, None)
        else:
            self._servers[name] = server
            self.sync(name)

    def see_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Hear of a pod."""
        if old is not None and (new is None or new.uid != old.uid):
            self._drop(old)
        if new is not None:
            self._see(new)

    def _drop(self, pod: Pod) -> None:
        member = self._members.pop(pod.name, None)
        self._deleting.discard(pod.uid)
        names = self._groups.get(pod.group, set())
        names.discard(pod.name)
        if not names:
            self._groups.pop(pod.group, None)
        if member is not None:
            self._spawn(member.agent.close())
        self._changed(pod.group)

    def _see(self, pod: Pod) -> None:
        member = self._members.get(pod.name)
        if member is not None:
            self._spawn(member.see(pod))
            return
        made = PodMember(pod, self._reach, lambda: self._changed(pod.group), self._led)
        self._members[pod.name] = made
        self._groups.setdefault(pod.group, set()).add(pod.name)
        made.connect()
        self._changed(pod.group)

    def see_child(self, old: Child | None, new: Child | None) -> None:
        """Hear of something that we applied: it was edited, deleted, or has another revision."""
        found = new or old
        if found is None or found.kind != SETS.kind:
            return
        if (server := self._servers.get(found.name)) is not None:
            self.sync(server.name)
            self._changed(server.group)

    def enrolled(self, pod_uid: str) -> None:
        """Hear that a pod's agent can be reached now, or has another certificate."""
        for member in self._members.values():
            if member.pod.uid == pod_uid:
                self._spawn(self._reconnect(member))

    async def _reconnect(self, member: PodMember) -> None:
        await member.agent.close()
        member.connect()

    def members(self, group: str) -> tuple[MemberView, ...]:
        """Return every member of a group that has a pod."""
        return tuple(member.view(outdated=self._is_outdated(member.pod)) for member in self._of(group))

    def uids(self, group: str) -> dict[str, str]:
        """Return the UID of every member's pod."""
        return {member.pod.name: member.pod.uid for member in self._of(group)}

    def _is_outdated(self, pod: Pod) -> bool:
        """A pod of an older template. Only its label tells: OnDelete never advances the set's current revision."""
        stateful = self._applier.inventory.get(self._set_of(pod.server))
        if stateful is None or not stateful.settled or not stateful.revision or not pod.revision:
            return False
        return pod.revision != stateful.revision

    async def refresh(self, group: str) -> None:
        """Ask every agent of a group now."""
        await asyncio.gather(*(self._members[name].agent.refresh() for name in tuple(self._groups.get(group, ()))))

    async def trainer(self, record: GroupRecord) -> TrainerView | None:
        """Name the pods that may hold a lost lease's memory. What they use of a device nobody can measure from here."""
        if record.lease is None or record.lease.stage is not LeaseStage.OWNER_LOST:
            return None
        return await asyncio.to_thread(holders_of, self._api, self._namespace, record)

    def sources(self, record: GroupRecord) -> frozenset[str]:
        """Return the folders of published weights that a record names, if the members can take them from there."""
        back = record.lease.back if record.lease else None
        named = {(record.serve.version, record.serve.source)}
        named |= {(back.version or 0, back.source or "")} if back else set()
        return frozenset(
            source for version, source in named if source and self._is_there(record.group, version, source)
        )

    def _is_there(self, group: str, version: int, source: str) -> bool:
        # A volume is seen by the agents alone. A relative path is in every member's own memory, which goes with its
        # pod: a member that lacks it cannot catch up, and then nobody tries.
        return source[0] == "/" or all(member.has(version) for member in self._of(group))

    def _of(self, group: str) -> list[PodMember]:
        found = (self._members[name] for name in sorted(self._groups.get(group, ())))
        return [member for member in found if self._is_ours(member.pod)]

    def _is_ours(self, pod: Pod) -> bool:
        """A pod of a server that was deleted is nobody's member, though a server of that name was made again."""
        server, stateful = self._servers.get(pod.server), self._applier.inventory.get(self._set_of(pod.server))
        if server is None or stateful is None or not pod.owner:
            return True
        return (stateful.owner, stateful.uid) == (server.metadata.uid, pod.owner)

    def _set_of(self, server: str) -> tuple[str, str, str]:
        return self._namespace, SETS.kind, server

    def handoff(self, group: str) -> str:
        """Return the folder, as the members see it, in which weights of a group are published."""
        servers = sorted(server.name for server in self._servers.values() if server.group == group)
        return handoff_folder(self._servers[servers[0]]) if servers else ""

    def streams(self, group: str) -> bool:
        """Say whether weights of a group are sent to its members' agents."""
        servers = sorted(server.name for server in self._servers.values() if server.group == group)
        return bool(servers) and handoff_of(self._servers[servers[0]]) is Handoff.STREAM

    def agents(self, group: str) -> Mapping[str, AgentClient | None]:
        """Return how to reach the agent of every member of a group; None where it cannot be reached now."""
        return {member.pod.name: member.agent.client() for member in self._of(group)}

    # what is done

    def sync(self, server: str) -> None:
        """Bring a server's children to what they should be, soon."""
        self._queue.add(server)

    def ensure(self, name: str, server: str, ordinal: int) -> None:
        """See that a member's pod is made, or that it is replaced when its turn comes."""
        self.sync(server)

    def end(self, name: str) -> None:
        """See that a member's pod goes: its StatefulSet is made smaller, or went with its server."""
        member = self._members.get(name)
        if member is not None and member.pod.server in self._servers:
            self.sync(member.pod.server)

    async def _sync(self, name: str) -> None:
        server = self._servers.get(name)
        if server is None:
            return
        problem = first_problem(server)
        if problem is None:
            problem = (await self._applier.apply(server, held=self._held(server.group))).problem
        problem = problem or self._podless(server)
        self._tell(server, problem)
        if problem is not None and problem.reason == "NameTaken":
            self._queue.add_after(name, RETRY)
        if problem is None and not self._held(server.group):
            await self._roll(server)

    def _podless(self, server: InferenceServer) -> Problem | None:
        """Say that the StatefulSet does not get its pods. Nothing but its count tells: there is no pod to look at."""
        found = self._applier.inventory.get(self._set_of(server.name))
        if found is None or not found.settled or found.made >= found.replicas:
            self._short.pop(server.name, None)
            return None
        waited = time.monotonic() - self._short.setdefault(server.name, time.monotonic())
        if waited < PATIENCE:
            self._queue.add_after(server.name, PATIENCE - waited)
            return None
        return pods_refused(server.name, found.made, found.replicas)

    def _tell(self, server: InferenceServer, problem: Problem | None) -> None:
        if problem == self.problems.get(server.name):
            return
        if problem is None:
            del self.problems[server.name]
        else:
            log.warning("server %s/%s: %s", self._namespace, server.name, problem.message)
            self.problems[server.name] = problem
        self._changed(server.group)

    async def _roll(self, server: InferenceServer) -> None:
        views = [view for view in self.members(server.group) if view.server == server.name]
        early = self._hearing - (time.monotonic() - self._born)
        if early > 0 and any(view.outdated and not (view.state or view.last or view.trouble) for view in views):
            self._queue.add_after(server.name, early)
            return
        pods = {view.name: self._members[view.name].pod for view in views}
        ready = {name for name, pod in pods.items() if pod.ready}
        # Who leaves still serves, and the kubelet still says so: nobody is to count on it.
        staying = [view for view in views if not self._leaves(pods[view.name])]
        name = next_to_replace(staying, server.spec.replicas, awake_of(server), ready)
        if name is None:
            return
        pod = pods[name]
        self._deleting.add(pod.uid)
        try:
            log.info("replacing pod %s/%s: it is of an older template", pod.namespace, pod.name)
            await asyncio.to_thread(self._api.delete, PODS, pod.namespace, pod.name, pod.uid, str(pod.version))
        except ApiError as error:
            self._deleting.discard(pod.uid)
            if not (error.conflict or error.missing):
                raise
            self._queue.add_after(server.name, RETRY)  # the pod changed meanwhile: look again

    def _leaves(self, pod: Pod) -> bool:
        return pod.deleting or pod.uid in self._deleting

    def call(self, call: Call) -> None:
        """Begin a call."""
        if call.member in self._members:
            self._spawn(self._members[call.member].agent.call(call))

    async def ask(self, call: Call) -> Outcome | None:
        """Make a call and wait for its outcome."""
        member = self._members.get(call.member)
        return await member.agent.call(call) if member else None

    def started_at(self, pid: int) -> int | None:
        """Return None: a process of another pod has no number here."""
        return None

    def retire(self, group: str, version: int) -> None:
        """Let agents forget what was streamed to them. A volume that the trainer writes is the trainer's to tidy."""
        if self.streams(group):
            for name, client in self.agents(group).items():
                if client is not None:
                    self._spawn(self._forget(name, client, version))

    @staticmethod
    async def _forget(name: str, client: AgentClient, version: int) -> None:
        try:
            await client.drop_upload(version, through=True)
        except (Unreachable, EbbtideError) as error:
            # Nothing is lost but memory, and only until the next version comes.
            log.info("%s did not forget version %d yet: %s", name, version, error)

    def _spawn(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a task of the driver failed", exc_info=error)

    async def stop(self, *, keep: bool) -> None:
        """Stop following agents. Pods always stay: they are their server's, not this process's."""
        await self._queue.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close_all(list(self._members.values()))
