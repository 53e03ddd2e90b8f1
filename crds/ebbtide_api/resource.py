"""What both kinds of custom resource share: the group, the version, and an object's metadata."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from .base import Reading
from .spec import Spec, rule

GROUP: Final = "ebbtide.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "ebbtide.dev/v1alpha1"

# A name becomes a Service's name (a DNS label that starts with a letter) and, with a hash of eleven characters,
# a StatefulSet's revision label (at most 63).
NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_LENGTH = 52


class ObjectMeta(Reading):
    """The part of Kubernetes' metadata that Ebbtide reads."""

    name: str = Field(pattern=NAME, min_length=1, max_length=NAME_LENGTH, description="The object's name.")
    namespace: str = Field("", description="The namespace; empty in local mode.")
    uid: str = Field("", description="Which object of that name.")
    generation: int = Field(0, description="Grows with every change of the spec.")
    resource_version: str = Field("", description="Changes with every write.")
    creation_timestamp: str | None = Field(None, description="When it was made, RFC 3339.")
    deletion_timestamp: str | None = Field(None, description="When its deletion was asked for, RFC 3339.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations.")


class Resource(Spec):
    """An object of ours, as a file or the API server holds it."""

    metadata: ObjectMeta = Field(description="Kubernetes' metadata.")

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
