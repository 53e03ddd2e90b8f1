"""The kinds of objects that we read and write, where the API server keeps them, and how it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from .names import Json


@dataclass(frozen=True)
class Kind:
    """One kind of object."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """The group and version as objects carry them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object, of a collection, or of a subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if namespace else ""
        return "/".join([f"{root}{place}/{self.plural}", *(part for part in (name, subresource) if part)])


SERVERS = Kind("ebbtide.dev", "v1alpha1", "inferenceservers", "InferenceServer")
PODS = Kind("", "v1", "pods", "Pod")
SETS = Kind("apps", "v1", "statefulsets", "StatefulSet")
SERVICES = Kind("", "v1", "services", "Service")
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
POLICIES = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
BUDGETS = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS = Kind("", "v1", "events", "Event")
TOKEN_REVIEWS = Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
ACCESS_REVIEWS = Kind("authorization.k8s.io", "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview")

CHILDREN = (CONFIG_MAPS, POLICIES, SERVICES, BUDGETS, SETS)
BY_NAME: Mapping[str, Kind] = {kind.kind: kind for kind in CHILDREN}


class ApiError(OSError):
    """The API server said no, or nothing: then `status` is 0."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message

    @property
    def missing(self) -> bool:
        """There is no such object."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """The object is another one, or was changed meanwhile, or is there already."""
        return self.status == 409

    @property
    def refused(self) -> bool:
        """What was sent is wrong or forbidden: sending it again changes nothing.

        An apply whose values do not fit their types, such as a quantity that is none, is answered with 500.
        """
        return self.status in (400, 403, 422) or (self.status == 500 and "failed to convert" in self.message)


class Api(Protocol):
    """The API server. Every call blocks, and raises ApiError. Lists come in chunks."""

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Return an object."""

    def list(self, kind: Kind, namespace: str, labels: str = "", fields: str = "") -> tuple[Iterable[Json], str]:
        """Return a collection as it is at one resourceVersion, and that version. All namespaces if empty."""

    def create(self, kind: Kind, namespace: str, body: Json, name: str = "", subresource: str = "") -> Json:
        """Make an object, or ask a question of a subresource."""

    def replace(self, kind: Kind, namespace: str, name: str, body: Json) -> Json:
        """Replace an object whose resourceVersion is the body's."""

    def apply(self, kind: Kind, body: Json, manager: str, *, subresource: str = "", dry_run: bool = False) -> Json:
        """Server-side apply, by force: what we own is as we say."""

    def delete(self, kind: Kind, namespace: str, name: str, uid: str, version: str = "") -> None:
        """Delete an object if it is still that one, unchanged since `version` where one is given."""
