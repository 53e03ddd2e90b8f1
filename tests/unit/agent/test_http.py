"""What is malformed is refused by name."""

from typing import Any

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import DrainMode, SleepRequest, Verb
from ebbtide_runtime.agent.http import MAX_BODY, parse_body, parse_call, parse_number, parse_seconds, parse_verb
from ebbtide_runtime.agent.steps import ACTIONS, BODIES
from hypothesis import given, settings
from hypothesis import strategies as st

HEADERS = {"Idempotency-Key": "op-1", "Ebbtide-Epoch": "4"}


def refused(call: Any, *arguments: Any) -> EbbtideError:
    with pytest.raises(EbbtideError) as caught:
        call(*arguments)
    return caught.value


def test_a_call_is_parsed() -> None:
    headers = {**HEADERS, "Ebbtide-Deadline": "2.5s", "Ebbtide-Instance": "u:1:2"}
    call = parse_call(Verb.SLEEP, headers, b'{"drain": {"mode": "Abort"}}')
    assert (call.key, call.epoch, call.deadline, call.instance) == ("op-1", 4, 2.5, "u:1:2")
    assert isinstance(call.body, SleepRequest)
    assert call.body.drain.mode is DrainMode.ABORT


def test_an_empty_body_is_an_empty_object() -> None:
    assert parse_call(Verb.WAKE_KV, HEADERS, b"").body.wire() == {}


def test_the_digest_is_of_what_is_asked() -> None:
    one = parse_call(Verb.SLEEP, HEADERS, b'{"level": 1, "settle": 0.2}')
    same = parse_call(Verb.SLEEP, {**HEADERS, "Ebbtide-Epoch": "9"}, b'{"settle":0.2,"level":1}')
    other = parse_call(Verb.SLEEP, HEADERS, b'{"level": 2, "settle": 0.2}')
    assert one.digest == same.digest != other.digest
    assert one.digest != parse_call(Verb.RESUME, HEADERS, b"{}").digest


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"Idempotency-Key": ""}, "Idempotency-Key"),
        ({"Idempotency-Key": "a b"}, "Idempotency-Key"),
        ({"Idempotency-Key": "x" * 201}, "Idempotency-Key"),
        ({"Ebbtide-Epoch": ""}, "Ebbtide-Epoch"),
        ({"Ebbtide-Epoch": "-1"}, "Ebbtide-Epoch"),
        ({"Ebbtide-Epoch": "1e3"}, "Ebbtide-Epoch"),
        ({"Ebbtide-Deadline": "soon"}, "Ebbtide-Deadline"),
    ],
)
def test_a_header_is_refused_by_name(change: dict[str, str], field: str) -> None:
    error = refused(parse_call, Verb.RESUME, {**HEADERS, **change}, b"")
    assert (error.code, error.details["field"]) == (ErrorCode.INVALID_REQUEST, field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"level": 3}', "level"),
        (b'{"drain": {"timeout": 0}}', "drain.timeout"),
        (b'{"drain": {"mode": "Sometimes"}}', "drain.mode"),
        (b'{"lvl": 1}', "lvl"),
        (b"{", ""),
        (b"[]", ""),
        (b"\xff", ""),
    ],
)
def test_a_body_is_refused_by_field(body: bytes, field: str) -> None:
    error = refused(parse_body, SleepRequest, body)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert error.details["errors"][0]["field"] == field


def test_a_large_body_is_not_parsed() -> None:
    assert refused(parse_body, SleepRequest, b" " * (MAX_BODY + 1)).code is ErrorCode.INVALID_REQUEST


def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    error = refused(parse_body, SleepRequest, b'{"level": "hunter2"}')
    assert "hunter2" not in str(error.body().wire())


def test_an_unknown_verb_is_not_found() -> None:
    error = refused(parse_verb, "explode")
    assert error.code is ErrorCode.NOT_FOUND
    assert error.details["verbs"] == [verb.value for verb in Verb]


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("30", 30), ("30s", 30), (" 1.5 ", 1.5), ("700", 600)])
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text, "wait", 600) == seconds


@settings(deadline=None)
@given(st.text(max_size=20))
def test_any_text_is_seconds_or_refused(text: str) -> None:
    try:
        seconds = parse_seconds(text, "wait")
    except EbbtideError as error:
        seconds = float(error.code is ErrorCode.INVALID_REQUEST) - 1
    assert seconds >= 0


def test_numbers() -> None:
    assert parse_number("1795985555732", "wait_version") == 1795985555732
    assert refused(parse_number, "x", "wait_version").details["field"] == "wait_version"


def test_every_verb_has_a_body_and_an_action() -> None:
    assert set(BODIES) == set(ACTIONS) == set(Verb)
