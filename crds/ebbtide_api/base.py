"""The base of every message: frozen, camelCase on the wire, unknown fields refused."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

# The largest integer that every reader of JSON keeps exact; the API server compares bounds as floats.
LARGEST_INTEGER = 2**53 - 1

# Written as Kubernetes and DESIGN write them, not as camelCase would.
_INITIALS = {"mib": "MiB", "ttl": "TTL"}


def wire_name(name: str) -> str:
    """Return a field's name on the wire: `weight_version` is `weightVersion`, `used_mib` is `usedMiB`."""
    first, *rest = name.split("_")
    return first + "".join(_INITIALS.get(word, word.capitalize()) for word in rest)


class Message(BaseModel):
    """A frozen record. Python names are snake_case, the wire's are camelCase; both are accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=wire_name, populate_by_name=True)

    def wire(self) -> dict[str, Any]:
        """Return the JSON-ready form, without absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Reading(Message):
    """A record somebody else wrote, perhaps a newer version of us: unknown fields are dropped."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=wire_name, populate_by_name=True)
