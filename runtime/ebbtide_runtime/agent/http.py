"""How calls and errors look over HTTP: headers, bodies, waiting times. Raises EbbtideError for what is malformed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from ebbtide_api.base import Message
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import DEADLINE, EPOCH, IDEMPOTENCY_KEY, INSTANCE, LEADER, Verb
from pydantic import ValidationError

from .executor import Call
from .steps import BODIES

Body = TypeVar("Body", bound=Message)

MAX_BODY = 64 << 10
MAX_WAIT_S = 600.0
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_NUMBER = re.compile(r"[0-9]{1,18}")
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s?")


def parse_verb(name: str) -> Verb:
    """Return the verb of a path. Raises NOT_FOUND."""
    try:
        return Verb(name)
    except ValueError:
        verbs = [verb.value for verb in Verb]
        raise EbbtideError(ErrorCode.NOT_FOUND, f"there is no verb {name!r}", verbs=verbs) from None


def parse_call(verb: Verb, headers: Mapping[str, str], data: bytes) -> Call:
    """Return a mutating call. Raises INVALID_REQUEST that names the header or the field."""
    deadline = headers.get(DEADLINE)
    return Call(
        verb=verb,
        key=_header(headers, IDEMPOTENCY_KEY, _KEY, "1 to 200 visible ASCII characters"),
        epoch=int(_header(headers, EPOCH, _NUMBER, "a number")),
        body=parse_body(BODIES[verb], data),
        instance=headers.get(INSTANCE),
        deadline=None if deadline is None else parse_seconds(deadline, DEADLINE),
        leader=parse_leader(headers),
    )


def parse_leader(headers: Mapping[str, str]) -> int:
    """Return the epoch of the operator that calls; 0 where it says none, as in local mode. Raises INVALID_REQUEST."""
    return parse_number(headers.get(LEADER, "0"), LEADER)


def parse_body(kind: type[Body], data: bytes, most: int = MAX_BODY) -> Body:
    """Return a body; an empty one is an empty object. Raises INVALID_REQUEST."""
    if len(data) > most:
        raise EbbtideError(ErrorCode.INVALID_REQUEST, f"the body is larger than {most} bytes")
    try:
        return kind.model_validate_json(data or b"{}")
    except ValidationError as error:
        wrong = [
            {"field": ".".join(map(str, item["loc"])), "message": item["msg"]}
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        first = wrong[0]
        sentence = f"{first['field'] or 'the body'}: {first['message']}"
        raise EbbtideError(ErrorCode.INVALID_REQUEST, sentence, errors=wrong) from None


def parse_seconds(text: str, name: str, most: float = float("inf")) -> float:
    """Return a time that was written as `30`, `30.5` or `30s`, at most `most`. Raises INVALID_REQUEST."""
    match = _SECONDS.fullmatch(text.strip())
    if match is None:
        raise EbbtideError(ErrorCode.INVALID_REQUEST, f"{name} is not a time in seconds", field=name)
    return min(float(match[1]), most)


def parse_number(text: str, name: str) -> int:
    """Return a number of up to 18 digits. Raises INVALID_REQUEST."""
    if _NUMBER.fullmatch(text) is None:
        raise EbbtideError(ErrorCode.INVALID_REQUEST, f"{name} is not a number", field=name)
    return int(text)


def _header(headers: Mapping[str, str], name: str, pattern: re.Pattern[str], what: str) -> str:
    value = headers.get(name, "")
    if pattern.fullmatch(value) is None:
        raise EbbtideError(ErrorCode.INVALID_REQUEST, f"the header {name} must be {what}", field=name)
    return value
