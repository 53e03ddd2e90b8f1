"""Amounts as Kubernetes writes them: bytes (`64Gi`), durations (`1h30m`), percentages (`10%`).

    parse_quantity("1.5Gi")   Fraction(1610612736)      format_quantity(1610612736)   "1536Mi"
    parse_duration("1h30m")   5400000000000 (ns)        format_duration(5400 * 10**9) "1h30m"
    Quantity, Duration, Percent   strings that were checked when made; they keep the writer's spelling

All arithmetic is exact: integers and fractions, never floats. Errors are ValueError, in a sentence.
Grammar: k8s.io/apimachinery/pkg/api/resource, and Go's time.ParseDuration.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_QUANTITY = re.compile(
    r"([+-]?)([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)"
)
_LARGEST = 2**63 - 1

_UNITS = {"h": 3_600_000_000_000, "m": 60_000_000_000, "s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_PART = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)(h|ms|us|µs|ns|m|s)")


def parse_quantity(text: str) -> Fraction:
    """Return the exact value of a Kubernetes quantity. ValueError beyond 2^63-1 or finer than nano."""
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:64]!r} is not a quantity such as 64Gi or 500Mi")
    sign, number, exponent, suffix = match.groups()
    value = Fraction(number) * _scale(exponent, suffix or "")
    if value > _LARGEST or (value * 10**9).denominator != 1:
        raise ValueError(f"{text!r} is out of range: at most 2^63-1, in steps of one nano")
    return -value if sign == "-" else value


def _scale(exponent: str | None, suffix: str) -> Fraction:
    if exponent is not None:
        return Fraction(10) ** int(exponent)
    if suffix in _BINARY:
        return Fraction(1024) ** _BINARY[suffix]
    return Fraction(1000) ** _DECIMAL[suffix]


def format_quantity(value: int | Fraction, *, binary: bool = True) -> str:
    """Return the canonical form: no fraction, the largest suffix that is exact. Below 1024 it is always decimal."""
    value = Fraction(value)
    if binary and value.denominator == 1 and abs(value) >= 1024:
        base, suffixes = 1024, {0: ""} | {power: suffix for suffix, power in _BINARY.items()}
    else:
        base, suffixes = 1000, {power: suffix for suffix, power in _DECIMAL.items()}
    for power, suffix in sorted(suffixes.items(), reverse=True):
        scaled = value / Fraction(base) ** power
        if value and scaled.denominator == 1:
            return f"{scaled.numerator}{suffix}"
    if value:
        raise ValueError(f"{value} is finer than one nano")
    return "0"


def parse_duration(text: str) -> int:
    """Return a duration's exact nanoseconds. ValueError if it has no unit, or is finer than a nanosecond."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text[:64]!r} is not a duration such as 200ms, 30s, 5m or 1h30m")
    total = sum(Fraction(number) * _UNITS[unit.replace("µ", "u")] for number, unit in parts)
    if total.denominator != 1 or total > _LARGEST:
        raise ValueError(f"{text!r} is out of range: whole nanoseconds, at most 292 years")
    return int(total)


def format_duration(nanoseconds: int) -> str:
    """Return the shortest exact form: `1h30m`, `1.5s`, `200ms`, `0s`."""
    if nanoseconds < 0:
        raise ValueError("a duration is never negative")
    text, rest = "", nanoseconds
    for unit in ("h", "m"):
        count, rest = divmod(rest, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    unit = next((unit for unit in ("s", "ms", "us") if rest >= _UNITS[unit]), "ns")
    if rest:
        text += _decimal(rest, _UNITS[unit]) + unit
    return text or "0s"


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    places = len(str(unit)) - 1
    return f"{whole}.{rest:0{places}}".rstrip("0").rstrip(".") if rest else str(whole)


class Amount(str):
    """A string with a value, checked when it is made. Two spellings of one value are different strings."""

    __slots__ = ()
    PATTERN: ClassVar[str]
    MAX_LENGTH: ClassVar[int]
    EXAMPLE: ClassVar[str]

    def __new__(cls, text: str) -> Self:
        """Check `text`; ValueError says what is wrong with it."""
        if len(text) > cls.MAX_LENGTH or not re.fullmatch(cls.PATTERN[1:-1], text):
            raise ValueError(f"{text[:64]!r} is not of the form {cls.EXAMPLE}")
        made = super().__new__(cls, text)
        _ = made.value
        return made

    @property
    def value(self) -> int:
        """The exact value in the smallest unit, to compare by."""
        raise NotImplementedError

    @classmethod
    def cel_between(cls, low: Amount, high: Amount) -> str:
        """Return the CEL expression that checks the bounds, both included."""
        raise NotImplementedError

    @classmethod
    def _accept(cls, raw: object) -> Self:
        if not isinstance(raw, str):
            raise PydanticCustomError("amount_type", "must be a string such as {example}", {"example": cls.EXAMPLE})
        try:
            return cls(raw)
        except ValueError as error:
            raise PydanticCustomError("amount", "{why}", {"why": str(error)}) from error

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by the constructor; serialize as the string."""
        text = core_schema.to_string_ser_schema()
        return core_schema.no_info_plain_validator_function(cls._accept, serialization=text)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe the string to Kubernetes."""
        return {"type": "string", "pattern": cls.PATTERN, "maxLength": cls.MAX_LENGTH}


class Quantity(Amount):
    """An amount of bytes: `64Gi`, `1.5Gi`, `500M`, `1048576` (also as a bare integer). Whole bytes only."""

    __slots__ = ()
    PATTERN = r"^[0-9]{1,19}(\.[0-9]{1,9})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
    MAX_LENGTH = 32
    EXAMPLE = "64Gi or 500Mi"

    @property
    def value(self) -> int:
        """The bytes."""
        exact = parse_quantity(self)
        if exact.denominator != 1:
            raise ValueError(f"{str(self)!r} is not a whole number of bytes")
        return exact.numerator

    @property
    def bytes(self) -> int:
        """The bytes."""
        return self.value

    @classmethod
    def of(cls, value: int) -> Quantity:
        """Return the canonical quantity of so many bytes."""
        return cls(format_quantity(value))

    @classmethod
    def cel_between(cls, low: Amount, high: Amount) -> str:
        """Return the CEL expression that checks the bounds and that the bytes are whole."""
        self = "quantity(string(self))"
        approximate = f"{self}.asApproximateFloat()"  # isInteger() is false for 1.5Gi
        return (
            f"double(int({approximate})) == {approximate} && {self}.compareTo(quantity('{low}')) >= 0"
            f" && {self}.compareTo(quantity('{high}')) <= 0"
        )

    @classmethod
    def _accept(cls, raw: object) -> Self:
        bare = isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw <= _LARGEST
        return super()._accept(str(raw) if bare else raw)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe it to Kubernetes as other quantities are: an integer or a string."""
        text = super().__get_pydantic_json_schema__(schema, handler)
        del text["type"]
        return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True, **text}


class Duration(Amount):
    """A time span: `200ms`, `30s`, `5m`, `1h30m`."""

    __slots__ = ()
    PATTERN = r"^([0-9]{1,9}(\.[0-9]{1,6})?(ms|s|m|h))+$"
    MAX_LENGTH = 32
    EXAMPLE = "200ms, 30s, 5m or 1h30m"

    @property
    def value(self) -> int:
        """The nanoseconds."""
        return parse_duration(self)

    @property
    def seconds(self) -> float:
        """The seconds."""
        return self.value / 1e9

    @classmethod
    def of(cls, nanoseconds: int) -> Duration:
        """Return the shortest form of so many nanoseconds. ValueError if it needs a unit below ms."""
        return cls(format_duration(nanoseconds))

    @classmethod
    def cel_between(cls, low: Amount, high: Amount) -> str:
        """Return the CEL expression that checks the bounds."""
        return f"duration(self) >= duration('{low}') && duration(self) <= duration('{high}')"


class Percent(Amount):
    """A whole share of a hundred: `0%` to `100%`."""

    __slots__ = ()
    PATTERN = r"^(100|[1-9]?[0-9])%$"
    MAX_LENGTH = 4
    EXAMPLE = "10%"

    @property
    def value(self) -> int:
        """The share, 0 to 100."""
        return int(self[:-1])

    @classmethod
    def cel_between(cls, low: Amount, high: Amount) -> str:
        """Return the CEL expression that checks the bounds."""
        self = "int(self.replace('%', ''))"
        return f"{self} >= {low.value} && {self} <= {high.value}"
