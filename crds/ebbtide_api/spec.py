"""Rules over several fields of a spec, said once: in Python for us, and in CEL for the API server.

    class Idle(Spec):
        after: Duration
        deeper_after: Duration

        @rule("duration(self.deeperAfter) >= duration(self.after)", "deeperAfter comes after `after`")
        def _deeper_is_later(self) -> bool:
            return self.deeper_after.value >= self.after.value

A `transition` compares with the old object; Python checks it where an object is replaced (`forbidden_changes`).
tests/unit/api shows good and bad objects to both, so the two forms of a rule cannot drift apart unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from .base import Message
from .quantity import Amount

VALIDATIONS = "x-kubernetes-validations"
_MARK = "__ebbtide_rule__"
_F = TypeVar("_F", bound=Callable[..., bool])


@dataclass(frozen=True)
class Cel:
    """One rule as the API server sees it. `field` is the wire name of the field at fault, if there is one."""

    rule: str
    message: str
    field: str = ""
    transition: bool = False

    def schema(self) -> dict[str, str]:
        """Return the entry of x-kubernetes-validations."""
        entry = {"rule": self.rule, "message": self.message}
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        return entry


def rule(cel: str, message: str, *, field: str = "") -> Callable[[_F], _F]:
    """Mark a method `(self) -> bool` as the Python form of the CEL rule `cel`."""
    return _mark(Cel(cel, message, field))


def transition(cel: str, message: str, *, field: str = "") -> Callable[[_F], _F]:
    """Mark a method `(self, old) -> bool` as the Python form of the CEL transition rule `cel`."""
    return _mark(Cel(cel, message, field, transition=True))


def _mark(cel: Cel) -> Callable[[_F], _F]:
    def mark(method: _F) -> _F:
        setattr(method, _MARK, cel)
        return method

    return mark


class Spec(Message):
    """A part of a custom resource: its rules are checked when it is made, and written into the CRD."""

    @classmethod
    def rules(cls) -> Iterator[tuple[Cel, Callable[..., bool]]]:
        """Yield each rule and the method that checks it, in the order they are written."""
        for owner in reversed(cls.__mro__):
            for method in vars(owner).values():
                if isinstance(cel := getattr(method, _MARK, None), Cel):
                    yield cel, method

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for cel, holds in type(self).rules():
            if not cel.transition and not holds(self):
                raise PydanticCustomError("rule", "{why}", {"why": cel.message, "field": cel.field})
        return self

    def forbidden_changes(self, old: Self) -> list[tuple[str, str]]:
        """Return (field path, why) for everything in which this object may not replace `old`."""
        found = [
            (cel.field, cel.message) for cel, allows in type(self).rules() if cel.transition and not allows(self, old)
        ]
        for name, field in type(self).model_fields.items():
            mine, theirs = getattr(self, name), getattr(old, name)
            if isinstance(mine, Spec) and type(mine) is type(theirs):
                found += [(f"{field.alias}.{path}".rstrip("."), why) for path, why in mine.forbidden_changes(theirs)]
        return found

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the rules to the model's schema."""
        reference = handler(schema)
        if rules := [cel.schema() for cel, _ in cls.rules()]:
            handler.resolve_ref_schema(reference)[VALIDATIONS] = rules
        return reference


@dataclass(frozen=True)
class Between:
    """Bounds of an amount, both included: `Annotated[Duration, Between(Duration("1s"), Duration("24h"))]`."""

    low: Amount
    high: Amount

    def _check(self, value: Amount) -> Amount:
        if not self.low.value <= value.value <= self.high.value:
            raise PydanticCustomError("between", "{why}", {"why": self.message})
        return value

    @property
    def message(self) -> str:
        """What the bounds are, in words."""
        return f"must be at least {self.low} and at most {self.high}"

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the bounds after the amount itself."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the bounds as a CEL rule."""
        described = handler(schema)
        described[VALIDATIONS] = [Cel(type(self.low).cel_between(self.low, self.high), self.message).schema()]
        return described


def list_map(*keys: str) -> dict[str, Any]:
    """Return the schema keys of a list whose items are told apart by `keys` (server-side apply merges by them)."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def list_of(kind: str) -> dict[str, Any]:
    """Return the schema keys of a list that is replaced whole (`atomic`) or is a `set`."""
    return {"x-kubernetes-list-type": kind}
