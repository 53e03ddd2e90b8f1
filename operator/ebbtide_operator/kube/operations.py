"""The operations of one namespace, kept in a ConfigMap, so that they survive the operator's pod."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from ebbtide_operator.operations import Operations

from .kinds import CONFIG_MAPS, Api, ApiError
from .names import MANAGER, Json
from .objects import text

log = logging.getLogger("ebbtide.operations")
NAME = "ebbtide-operations"
KEPT = 64
LARGEST = 900_000
"""Bytes of the ConfigMap's data: the API server takes no more than 1 MiB of an object."""


class KubeOperations(Operations):
    """See operations.Operations. The file is a copy of the ConfigMap; only what is in the ConfigMap counts."""

    def __init__(self, api: Api, namespace: str, folder: Path) -> None:
        super().__init__(folder / f"operations-{namespace}.json", KEPT)
        self._api, self._namespace = api, namespace

    def load(self) -> None:
        """Read what an earlier operator left. Blocks; raises ApiError."""
        try:
            found = self._api.get(CONFIG_MAPS, self._namespace, NAME)
        except ApiError as error:
            if not error.missing:
                raise
            return
        self._path.write_text(text(found, "data", "operations") or '{"entries": []}', encoding="utf-8")
        super().load()

    async def _save(self) -> None:
        await super()._save()
        data = await asyncio.to_thread(self._path.read_text, encoding="utf-8")
        if len(data.encode()) > LARGEST:
            log.warning("the operations of namespace %s do not fit their ConfigMap; they are not kept", self._namespace)
            return
        labels = {"app.kubernetes.io/managed-by": MANAGER}
        metadata: Json = {"name": NAME, "namespace": self._namespace, "labels": labels}
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"operations": data}}
        await asyncio.to_thread(self._api.apply, CONFIG_MAPS, body, "ebbtide/operations")
