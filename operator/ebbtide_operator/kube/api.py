"""The API server, over the official client: the only importer of `kubernetes`.

Objects stay JSON. The client is used for what is hard: finding the cluster, credentials that rotate, TLS.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import urllib3
from kubernetes import client, config

from .kinds import ApiError, Kind
from .names import Json

CHUNK = 500
TIMEOUT_S = (5.0, 30.0)
"""Seconds to connect, and for one answer."""
_APPLY = "application/apply-patch+yaml"


class ApiServer:
    """See kinds.Api."""

    def __init__(self, api_client: Any) -> None:
        self.writes = 0
        self.asked: Counter[tuple[str, str]] = Counter()
        """Calls by verb and resource, as roles name them; a watch is not among them, kopf makes those."""
        self._client = api_client

    @classmethod
    def connect(cls) -> ApiServer:
        """Find the cluster: from inside a pod, else by KUBECONFIG. Raises kubernetes' ConfigException."""
        settings = client.Configuration()
        inside: Callable[..., None] = config.load_incluster_config
        outside: Callable[..., None] = config.load_kube_config
        try:
            inside(client_configuration=settings)
        except config.ConfigException:
            outside(client_configuration=settings)
        settings.retries = False
        return cls(client.ApiClient(settings))

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """See Api."""
        self._note("get", kind)
        return self._ask("GET", kind.path(namespace, name))

    def list(self, kind: Kind, namespace: str, labels: str = "", fields: str = "") -> tuple[Iterable[Json], str]:
        """See Api. The first chunk is read now, the others as they are asked for."""
        self._note("list", kind)
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        query = {"limit": str(CHUNK), **{name: value for name, value in selectors.items() if value}}
        first = self._ask("GET", kind.path(namespace), query)
        return self._items(kind, namespace, query, first), _metadata(first, "resourceVersion")

    def _items(self, kind: Kind, namespace: str, query: dict[str, str], page: Json) -> Iterator[Json]:
        while True:
            items = page.get("items")
            yield from items if isinstance(items, list) else []
            if not (more := _metadata(page, "continue")):
                return
            page = self._ask("GET", kind.path(namespace), {**query, "continue": more})

    def create(self, kind: Kind, namespace: str, body: Json, name: str = "", subresource: str = "") -> Json:
        """See Api."""
        self._note("create", kind, subresource)
        return self._ask("POST", kind.path(namespace, name, subresource), body=body)

    def replace(self, kind: Kind, namespace: str, name: str, body: Json) -> Json:
        """See Api."""
        self._note("update", kind)
        return self._ask("PUT", kind.path(namespace, name), body=body)

    def apply(self, kind: Kind, body: Json, manager: str, *, subresource: str = "", dry_run: bool = False) -> Json:
        """See Api."""
        self._note("patch", kind, subresource)
        query = {"fieldManager": manager, "force": "true", **({"dryRun": "All"} if dry_run else {})}
        path = kind.path(_metadata(body, "namespace"), _metadata(body, "name"), subresource)
        return self._ask("PATCH", path, query, body, _APPLY)

    def delete(self, kind: Kind, namespace: str, name: str, uid: str, version: str = "") -> None:
        """See Api."""
        self._note("delete", kind)
        wanted = {"uid": uid, **({"resourceVersion": version} if version else {})}
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": wanted}
        self._ask("DELETE", kind.path(namespace, name), body=body)

    def _note(self, verb: str, kind: Kind, subresource: str = "") -> None:
        self.asked[verb, f"{kind.plural}/{subresource}" if subresource else kind.plural] += 1

    def _ask(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        # A dry run changes nothing, and a review asks something: neither is a write.
        self.writes += method != "GET" and "dryRun" not in (query or {}) and not path.endswith("reviews")
        headers = {"Accept": "application/json", "Content-Type": content_type}
        asked = self._client.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, auth_settings=["BearerToken"]
        )
        try:
            answer = self._client.call_api(asked[0], asked[1], asked[2], body, _request_timeout=TIMEOUT_S)
            status, data = answer.status, answer.read()
        except client.ApiException as error:
            raise ApiError(error.status or 0, error.reason or "", str(error.body or "")) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, type(error).__name__, str(error)) from error
        return _read(status, data)


def _read(status: int, data: bytes) -> Json:
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {"message": data[:500].decode(errors="replace")}
    if not 200 <= status < 300:
        raise ApiError(status, str(body.get("reason", "")), str(body.get("message", "")))
    return body


def _metadata(body: Json, field: str) -> str:
    metadata = body.get("metadata")
    return str(metadata.get(field) or "") if isinstance(metadata, dict) else ""
