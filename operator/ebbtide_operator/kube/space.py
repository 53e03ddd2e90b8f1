"""One namespace: its servers, groups and members, under the same loop as in local mode.

Namespaces share nothing but the API server and the process, so a name in one never meets a name in another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.server import Handoff, InferenceServer
from ebbtide_api.server_status import ServerStatus
from ebbtide_api.verbs import Obstacle

from ebbtide_operator.loop import Group, Operator
from ebbtide_operator.operations import now
from ebbtide_operator.plan import GroupRecord
from ebbtide_operator.plan.lease import HOLDS
from ebbtide_operator.queue import WorkQueue
from ebbtide_operator.settings import Settings

from .apply import MANAGER, Applier
from .cache import Cache
from .children import Problem, Site
from .children.metadata import owner
from .driver import Ask, KubeDriver
from .events import Events, transitions
from .kinds import SERVERS, SETS, Api, ApiError
from .leases import LeaseMovedError, LeaseRecords
from .member import Led, Reach
from .names import Json
from .objects import Child, text
from .operations import KubeOperations
from .site_views import HANDOFF_MIXED, effective, highest, mixed_handoff, oldest_taker, problem_of, server_view
from .status import Observed, status_of, status_patch, worth_writing

log = logging.getLogger("ebbtide.space")


@dataclass(frozen=True)
class Place:
    """What every namespace of one operator shares. `folder` is a place for files that need not survive."""

    api: Api
    site: Site
    reach: Reach
    inventory: Cache[Child]
    folder: Path
    led: Led = lambda _epoch, _ours: None


class Space(Operator):
    """See loop.Operator. Servers come and go one at a time, as the watch tells."""

    default_handoff = Handoff.STREAM

    def __init__(self, place: Place, namespace: str) -> None:
        self.namespace = namespace
        self.asked: dict[str, InferenceServer] = {}
        """Every server as its object says; `servers` are those that are carried out, as far as they may be now."""
        self._api, self._inventory = place.api, place.inventory
        self._refused: dict[str, Problem] = {}
        self._written: dict[str, ServerStatus] = {}
        self._kube = KubeDriver(
            place.api,
            namespace,
            Applier(place.api, place.site, place.inventory),
            Ask(place.reach, self.is_held, place.led),
        )
        self._by_group: dict[str, set[str]] = {}
        self._leases = LeaseRecords(place.api, namespace, self._told, self._owners)
        operations = KubeOperations(place.api, namespace, place.folder)
        super().__init__(self._kube, self._leases, operations, Settings(home=place.folder))
        self._events = Events(place.api)
        self.statuses = WorkQueue(self._report)

    @property
    def kube(self) -> KubeDriver:
        """The driver, for those who feed it."""
        return self._kube

    @property
    def leases(self) -> LeaseRecords:
        """The records, for those who feed them."""
        return self._leases

    async def open(self, servers: Iterable[InferenceServer]) -> None:
        """Read what an earlier operator left, and begin. Raises ApiError."""
        for server in servers:
            self._index(None, server)
        await asyncio.to_thread(self._leases.open)
        await asyncio.to_thread(self.operations.load)
        for server in tuple(self.asked.values()):
            self.put(server)
        await self._answer_orphans()

    async def stop(self, *, keep: bool = True) -> None:
        """Stop. Pods stay."""
        await self.statuses.close()
        await super().stop(keep=keep)

    # servers

    def put(self, server: InferenceServer) -> None:
        """Take a new or changed server. One that cannot be carried out leaves what runs as it is."""
        before = self.asked.get(server.name)
        self._index(before, server)
        if server.status is not None:
            self._written[server.name] = server.status
        elif before and before.metadata.uid != server.metadata.uid:
            self._written.pop(server.name, None)  # another one of that name
        self._judge(server)
        if before is None or before.spec.weights.handoff is not server.spec.weights.handoff:
            self._judge_others(server.group)

    def _judge_others(self, group: str) -> None:
        """Look again at servers for whom another one's hand-off, or its end, makes a difference."""
        servers = self._asked_of(group)
        oldest = oldest_taker(servers)
        for server in servers:
            refused = self._refused.get(server.name)
            if mixed_handoff(server, oldest) != (refused if refused and refused.reason == HANDOFF_MIXED else None):
                self._judge(server)

    def _judge(self, server: InferenceServer) -> None:
        oldest = oldest_taker(self._asked_of(server.group))
        problem = problem_of(server) or self._renamed_group(server) or mixed_handoff(server, oldest)
        if problem is None:
            self._refused.pop(server.name, None)
            self._carry_out(server)
        elif self._refused.get(server.name) != problem:
            log.warning("server %s/%s: %s", self.namespace, server.name, problem.message)
            self._refused[server.name] = problem
        self.statuses.add(server.name)

    def _renamed_group(self, server: InferenceServer) -> Problem | None:
        running = self.servers.get(server.name)
        if running is None or running.group == server.group or running.metadata.uid != server.metadata.uid:
            return None
        return Problem("GroupChanged", "colocation.group cannot be changed: make another server.")

    def _carry_out(self, server: InferenceServer) -> None:
        group = server.group
        if group not in self.groups:
            self.groups[group] = Group(self._leases.load(group))
        stateful = self._inventory.get((self.namespace, SETS.kind, server.name))
        running = stateful.replicas if stateful and stateful.owner == server.metadata.uid else None
        wanted = effective(_as_asked(server), running, held=self.is_held(group))
        if self.servers.get(server.name) != wanted:
            self.servers[server.name], self.views[server.name] = wanted, server_view(wanted)
            self._kube.want_one(server.name, wanted)
            self.changed(group)

    def forget(self, name: str) -> None:
        """Take that a server is no more. Its children go with it; its group's record stays in its Lease."""
        server = self.asked.get(name)
        self._index(server, None)
        self.servers.pop(name, None)
        self.views.pop(name, None)
        self._refused.pop(name, None)
        self._written.pop(name, None)
        self._kube.want_one(name, None)
        if server is not None:
            self.changed(server.group)
            self._judge_others(server.group)

    def _index(self, before: InferenceServer | None, after: InferenceServer | None) -> None:
        if before is not None:
            self.asked.pop(before.name, None)
            self._by_group.get(before.group, set()).discard(before.name)
        if after is not None:
            self.asked[after.name] = after
            self._by_group.setdefault(after.group, set()).add(after.name)

    def _asked_of(self, group: str) -> list[InferenceServer]:
        return [self.asked[name] for name in sorted(self._by_group.get(group, ()))]

    def servers_of(self, group: str) -> list[InferenceServer]:
        """Return a group's servers, by name."""
        return [self.servers[server.name] for server in self._asked_of(group) if server.name in self.servers]

    def find(self, name: str) -> InferenceServer | None:
        """Return a server by its name, also one whose spec cannot be carried out."""
        return self.servers.get(name) or self.asked.get(name)

    def problem(self, name: str) -> Problem | None:
        """Return why a server's spec is not carried out, or its pods do not come."""
        return self._refused.get(name) or self._kube.problems.get(name)

    def refusal(self, name: str) -> Obstacle | None:
        """Return the same for people; since when, the server's condition Stalled tells."""
        problem = self.problem(name)
        if problem is None:
            return None
        advice = f"Change it with kubectl; `kubectl -n {self.namespace} describe inferenceserver {name}` tells more."
        written = self._written.get(name)
        since = [one.last_transition_time for one in written.conditions if one.type == "Stalled"] if written else []
        return Obstacle(
            subject=name, reason=problem.reason, message=problem.message, next_action=advice, since=(since or [""])[0]
        )

    def is_held(self, group: str) -> bool:
        """Say whether a group's memory is lent, or on its way: then its servers stay as they are."""
        lease = self.groups[group].record.lease if group in self.groups else None
        return lease is not None and lease.stage in HOLDS

    def _told(self, group: str) -> tuple[int, str]:
        return highest(self._asked_of(group))

    def _owners(self, group: str) -> list[Json]:
        return [owner(server) for server in self._asked_of(group)]

    def accept(self, servers: Iterable[InferenceServer]) -> list[InferenceServer]:
        """Refuse: on a cluster, servers are applied to the API server."""
        raise EbbtideError(ErrorCode.INVALID_REQUEST, "on a cluster, servers are applied with kubectl, not here")

    # the loop

    async def reconcile(self, name: str) -> None:
        """Observe, plan, carry out; then say what was seen."""
        group = self.groups[name]
        # A group without servers has no Lease: nothing would ever remove it.
        if self._by_group.get(name) and not self._leases.is_kept(group.record):
            async with group.lock:
                await self.save(group, group.record)
        await super().reconcile(name)
        for server in self._asked_of(name):
            self.statuses.add(server.name)

    async def save(self, group: Group, record: GroupRecord) -> None:
        """Make a record durable. Raises LeaseMovedError after the Lease's own record was taken: decide again."""
        held = self.is_held(record.group)
        try:
            await super().save(group, record)
        except LeaseMovedError:
            await self._take_lease(group)
            raise
        if held and not self.is_held(record.group):
            self._thaw(record.group)

    def _thaw(self, group: str) -> None:
        """Carry out what was asked for while the memory was lent."""
        for server in self._asked_of(group):
            self.put(server)
            self._kube.sync(server.name)

    # leases that somebody else touched

    def see_lease(self, lease: Mapping[str, object], *, deleted: bool = False) -> None:
        """Hear of a Lease."""
        if (group := self._leases.see(lease, deleted=deleted)) is not None:
            self._heard(group)

    def _heard(self, group: str) -> None:
        if group in self.groups and self._by_group.get(group):
            log.warning("the Lease of group %s/%s was changed by somebody else", self.namespace, group)
            task = asyncio.create_task(self._restore(group))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def check_leases(self, listed: Iterable[Mapping[str, object]], version: int) -> None:
        """Hear of all Leases of the namespace, as they were at a version: a deletion may have been missed."""
        for lease in listed:
            self.see_lease(lease)
        for group in self._leases.missing({text(one, "metadata", "name") for one in listed}, version):
            self._heard(group)

    async def _restore(self, name: str) -> None:
        group = self.groups[name]
        try:
            async with group.lock:
                await self._take_lease(group)
                await self.save(group, group.record)
        except OSError as error:
            log.warning("the Lease of group %s/%s is not restored yet: %s", self.namespace, name, error)
        self.changed(name)  # the reconcile goes on from here, or tries it again

    async def _take_lease(self, group: Group) -> None:
        group.record = await asyncio.to_thread(self._leases.renounce, group.record)

    # status

    async def _report(self, name: str) -> None:
        """Write a server's status, if it tells more than the written one."""
        server = self.asked.get(name)
        if server is None:
            return
        old, new = self._written.get(name), self._status(server)
        if not worth_writing(old, new):
            return
        try:
            await asyncio.to_thread(self._api.apply, SERVERS, status_patch(server, new), MANAGER, subresource="status")
        except ApiError as error:
            if error.missing or error.conflict:
                return  # it is gone, or another one of that name: the watch will tell
            raise
        self._written[name] = new
        await self._events.tell(server, transitions(old, new), now())

    def _status(self, server: InferenceServer) -> ServerStatus:
        group = self.groups.get(server.group)
        record = group.record if group else GroupRecord(group=server.group)
        members = self._kube.members(server.group)
        before = server.model_copy(update={"status": self._written.get(server.name)})
        seen = Observed(
            record=record,
            members=tuple(member for member in members if member.server == server.name),
            conditions=group.conditions.get(server.name, ()) if group else (),
            now=now(),
            uids=self._kube.uids(server.group),
            problem=self.problem(server.name),
        )
        return status_of(before, seen)


def _as_asked(server: InferenceServer) -> InferenceServer:
    """Return a server without what our own writes of its status change."""
    metadata = server.metadata.model_copy(update={"resource_version": ""})
    return server.model_copy(update={"metadata": metadata, "status": None})
