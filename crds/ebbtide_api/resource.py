"""What both kinds of custom resource share: the group, the version, and an object's metadata."""

from __future__ import annotations

from pydantic import Field

from .base import Reading
from .spec import Spec, rule

GROUP = "ebbtide.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

# A name becomes a Service's name (a DNS label that starts with a letter) and, with a hash of eleven characters,
# a StatefulSet's revision label (at most 63).
NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_LENGTH = 52


class ObjectMeta(Reading):
    """The part of Kubernetes' metadata that Ebbtide reads."""

    name: str = Field(pattern=NAME, min_length=1, max_length=NAME_LENGTH)
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Resource(Spec):
    """An object of ours, as a file or the API server holds it."""

    metadata: ObjectMeta

    @property
    def name(self) -> str:
        """The object's name."""
        return self.metadata.name

    @rule(
        f"self.metadata.name.size() <= {NAME_LENGTH} && self.metadata.name.matches('{NAME}')",
        f"metadata.name has at most {NAME_LENGTH} characters: a letter, then a-z, 0-9 and -, not - at the end",
    )
    def _name_fits_its_children(self) -> bool:
        return True  # ObjectMeta checked it
