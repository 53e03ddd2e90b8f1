"""The base of every message: frozen, camelCase on the wire, unknown fields refused."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Message(BaseModel):
    """A frozen record. Python names are snake_case, the wire's are camelCase; both are accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    def wire(self) -> dict[str, Any]:
        """Return the JSON-ready form, without absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Reading(Message):
    """A record somebody else wrote, perhaps a newer version of us: unknown fields are dropped."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)
