"""Between the cluster and the namespaces' operators: caches fed by the watch and put right by lists."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide_api.server import InferenceServer
from pydantic import ValidationError

from ebbtide_operator.drive.agents import AgentClient

from .cache import Cache, version_number
from .children import Site
from .kinds import BY_NAME, LEASES, PODS, SERVERS, SETS, Api, ApiError, Kind
from .leasing import GROUP_LEASE, KIND_LABEL
from .lock import Leadership
from .names import SERVER, Json
from .objects import Child, Key, Pod, read_child, read_pod, text
from .observe import Enrolled, agent_url, transport_for
from .space import Place, Space
from .tokens import Tokens
from .watch import Seen

log = logging.getLogger("ebbtide.hub")
OPEN_RETRY = 2.0


@dataclass(frozen=True)
class Known:
    """An InferenceServer as it was last seen."""

    server: InferenceServer

    @property
    def key(self) -> Key:
        """Its namespace and name."""
        return self.server.metadata.namespace, self.server.name

    @property
    def version(self) -> int:
        """Its resourceVersion."""
        return version_number(self.server.metadata.resource_version)


class Hub:
    """Everything that is known of the cluster. `namespaces` empty means all of them."""

    def __init__(
        self, api: Api, site: Site, leader: Leadership, namespaces: Iterable[str] = (), scratch: Path = Path(".")
    ) -> None:
        self.spaces: dict[str, Space] = {}
        self.enrolled = Enrolled(self._on_enrolled)
        self._api, self._site, self._leader = api, site, leader
        self._namespaces, self._scratch = tuple(namespaces), scratch
        self._tokens = Tokens(api, site.namespace, site.account)
        self._servers: Cache[Known] = Cache(self._on_server)
        self._pods: Cache[Pod] = Cache(self._on_pod)
        self._children: Cache[Child] = Cache(self._on_child)
        self._opening: dict[str, asyncio.Task[None]] = {}

    # what the watch tells

    @property
    def seen(self) -> Mapping[Kind, Seen]:
        """What to call with what is watched."""
        return {SERVERS: self.see_server, PODS: self.see_pod, SETS: self.see_set, LEASES: self.see_lease}

    def see_server(self, raw: Json, gone: bool) -> None:
        """Hear of an InferenceServer."""
        known = _read_server(raw)
        if known is not None:
            (self._servers.lose if gone else self._servers.see)(known)

    def see_pod(self, raw: Json, gone: bool) -> None:
        """Hear of a pod with our label."""
        if (pod := read_pod(raw)) is not None:
            (self._pods.lose if gone else self._pods.see)(pod)

    def see_set(self, raw: Json, gone: bool) -> None:
        """Hear of a StatefulSet with our label."""
        child = read_child(raw, SETS.kind)
        (self._children.lose if gone else self._children.see)(child)

    def see_lease(self, raw: Json, gone: bool) -> None:
        """Hear of a Lease of ours: the operator's own, or a group's."""
        if text(raw, "metadata", "labels", KIND_LABEL) != GROUP_LEASE:
            self._leader.see(raw)
        elif (space := self.spaces.get(text(raw, "metadata", "namespace"))) is not None:
            space.see_lease(raw, deleted=gone)

    # what caches tell

    def _on_server(self, old: Known | None, new: Known | None) -> None:
        found = new or old
        if found is None:
            return
        namespace, name = found.key
        space = self.spaces.get(namespace)
        if space is None:
            self._open(namespace)
        elif new is None:
            space.forget(name)
            self._tokens.forget(found.server.metadata.uid)
        else:
            space.put(new.server)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        found = new or old
        if old is not None and (new is None or new.uid != old.uid):
            self.enrolled.forget(old.uid)
        if found is not None and (space := self.spaces.get(found.namespace)) is not None:
            space.kube.see_pod(old, new)

    def _on_child(self, old: Child | None, new: Child | None) -> None:
        found = new or old
        if found is not None and (space := self.spaces.get(found.namespace)) is not None:
            space.kube.see_child(old, new)

    def _on_enrolled(self, pod_uid: str) -> None:
        for space in self.spaces.values():
            space.kube.enrolled(pod_uid)

    def _reach(self, pod: Pod) -> AgentClient | None:
        pem, known = self.enrolled.get(pod.uid), self._servers.get((pod.namespace, pod.server))
        if pem is None or known is None or not pod.ip:
            return None
        transport = transport_for(pem, self._tokens, known.server.metadata.uid, lambda: self._leader.epoch)
        return AgentClient(agent_url(pod), "", transport)

    # namespaces

    def _open(self, namespace: str) -> None:
        if namespace not in self._opening:
            self._opening[namespace] = asyncio.create_task(self._bring_up(namespace), name=f"open {namespace}")

    async def _bring_up(self, namespace: str) -> None:
        place = Place(self._api, self._site, self._reach, self._children, self._scratch, self._leader.hear_of)
        while True:
            space = Space(place, namespace)
            try:
                await space.open(known.server for known in self._servers if known.key[0] == namespace)
            except ApiError as error:
                log.warning("namespace %s cannot be opened yet: %s", namespace, error)
                await space.stop()
                await asyncio.sleep(OPEN_RETRY)
                continue
            break
        self.spaces[namespace] = space
        self._catch_up(space)

    def _catch_up(self, space: Space) -> None:
        """Tell a namespace what was heard of it while it was opened."""
        listed = {known.server.name: known.server for known in self._servers if known.key[0] == space.namespace}
        for name in set(space.asked) - set(listed):
            space.forget(name)
        for server in listed.values():
            space.put(server)
        for pod in self._pods:
            if pod.namespace == space.namespace:
                space.kube.see_pod(None, pod)

    # lists

    async def load(self) -> None:
        """Read everything, once, before anything is done. Raises ApiError."""
        # Children and pods first: a server is looked at in the light of what is there.
        await self.resync()
        await asyncio.gather(*self._opening.values())

    async def resync(self) -> None:
        """Read everything again: watches lose deletions. Raises ApiError."""
        for namespace in self._namespaces or ("",):
            await self._resync(namespace)

    async def _resync(self, namespace: str) -> None:
        children: list[Child] = []
        versions = []
        for kind in BY_NAME.values():
            found, version = await self._list(kind, namespace, SERVER)
            children += [read_child(raw, kind.kind) for raw in found]
            versions.append(version)
        self._children.replace([*children, *self._elsewhere(self._children, namespace)], min(versions))
        raw_pods, version = await self._list(PODS, namespace, SERVER)
        pods = [pod for raw in raw_pods if (pod := read_pod(raw))]
        self._pods.replace([*pods, *self._elsewhere(self._pods, namespace)], version)
        raw_servers, version = await self._list(SERVERS, namespace, "")
        servers = [known for raw in raw_servers if (known := _read_server(raw) or self._before(raw))]
        self._servers.replace([*servers, *self._elsewhere(self._servers, namespace)], version)
        await self._resync_leases(namespace)

    async def _resync_leases(self, namespace: str) -> None:
        leases, version = await self._list(LEASES, namespace, f"{KIND_LABEL}={GROUP_LEASE}")
        for name, space in tuple(self.spaces.items()):
            if namespace in ("", name):
                space.check_leases([one for one in leases if text(one, "metadata", "namespace") == name], version)

    async def _list(self, kind: Kind, namespace: str, labels: str) -> tuple[list[Json], int]:
        def read() -> tuple[list[Json], int]:
            found, version = self._api.list(kind, namespace, labels)
            return list(found), version_number(version)

        return await asyncio.to_thread(read)

    @staticmethod
    def _elsewhere(cache: Cache, namespace: str) -> list:  # type: ignore[type-arg]
        """Return what a list of one namespace says nothing of."""
        return [found for found in cache if namespace and found.key[0] != namespace]

    def _before(self, raw: Json) -> Known | None:
        """A server that cannot be read stays as it last could be: what runs is not touched."""
        return self._servers.get((text(raw, "metadata", "namespace"), text(raw, "metadata", "name")))

    async def stop(self) -> None:
        """Stop everything. Pods stay."""
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*(space.stop() for space in self.spaces.values()))


def _read_server(raw: Json) -> Known | None:
    try:
        return Known(InferenceServer.model_validate(raw))
    except ValidationError as error:
        name = f"{text(raw, 'metadata', 'namespace')}/{text(raw, 'metadata', 'name')}"
        log.error("InferenceServer %s cannot be read, and stays as it was: %s", name, error)  # noqa: TRY400 - no traceback
        return None
