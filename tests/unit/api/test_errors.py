"""Every code has its rule and its meaning, and an error survives the wire whoever wrote it."""

from http import HTTPStatus
from typing import Any

import pytest
from ebbtide_api.errors import MEANINGS, RULES, EbbtideError, ErrorBody, ErrorCode
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

# DESIGN 5.3, and the codes that the main job added.
STATUS = {
    400: {"INVALID_TAG", "INVALID_MODE", "INVALID_REQUEST"},
    401: {"UNAUTHENTICATED"},
    403: {"NOT_LEASE_HOLDER", "FORBIDDEN"},
    404: {"NOT_FOUND"},
    409: {
        "ILLEGAL_TRANSITION",
        "OPERATION_IN_PROGRESS",
        "WEIGHTS_NOT_COMMITTED",
        "VERSION_REGRESSION",
        "MEMBERSHIP_CHANGED",
    },
    410: {"INSTANCE_REPLACED"},
    412: {"STALE_EPOCH"},
    422: {"LEVEL_UNSUPPORTED", "TRANSPORT_IMPOSSIBLE", "OPERATION_MISMATCH", "MANIFEST_INVALID", "NOT_YET_SUPPORTED"},
    423: {"DEVICE_NOT_FREE"},
    500: {"ENGINE_FAULTED", "RANK_DISAGREEMENT", "RELEASE_INCOMPLETE", "CANARY_FAILED", "INTERNAL"},
    501: {"NOT_IMPLEMENTED"},
    503: {"ENGINE_ASLEEP", "DRAINING", "UPDATING", "ENGINE_STARTING", "UNREACHABLE"},
    504: {"DRAIN_DEADLINE", "PHASE_DEADLINE"},
    507: {"HOST_MEMORY_INSUFFICIENT"},
}

details = st.dictionaries(
    st.text(min_size=1, max_size=12), st.none() | st.integers(-(2**53), 2**53) | st.text(max_size=20) | st.booleans()
)


def test_every_code_has_a_rule_and_a_meaning() -> None:
    assert set(RULES) == set(ErrorCode)
    assert set(MEANINGS) == set(ErrorCode)


def test_codes_have_the_status_of_the_design() -> None:
    by_status: dict[int, set[str]] = {}
    for code, rule in RULES.items():
        by_status.setdefault(rule.status, set()).add(code)
    assert by_status == STATUS


@pytest.mark.parametrize("code", ErrorCode)
def test_a_code_is_its_own_name(code: ErrorCode) -> None:
    assert code == code.name == f"{code}"


@pytest.mark.parametrize("code", ErrorCode)
def test_rules_read_well(code: ErrorCode) -> None:
    for sentence in (RULES[code].next_action, MEANINGS[code]):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert "|" not in sentence
    assert 400 <= HTTPStatus(RULES[code].status) < 600


@pytest.mark.parametrize("code", [code for code in ErrorCode if RULES[code].status == 503])
def test_what_is_only_for_now_can_be_retried(code: ErrorCode) -> None:
    assert RULES[code].retryable


@given(code=st.sampled_from(ErrorCode), message=st.text(), details=details, retryable=st.booleans())
def test_an_error_survives_the_wire(code: ErrorCode, message: str, details: dict[str, Any], retryable: bool) -> None:
    body = ErrorBody(code=code, message=message, retryable=retryable, next_action="Do this.", details=details)
    error = EbbtideError.of(ErrorBody.model_validate(body.wire()))
    assert error.body() == body
    assert error.status == RULES[code].status


@pytest.mark.parametrize("name", ["code", "message", "self", "next_action", "cls"])
def test_a_detail_may_have_any_name(name: str) -> None:
    body = ErrorBody(code=ErrorCode.NOT_FOUND, message="no", details={name: 1})
    assert EbbtideError.of(body).details == {name: 1}


def test_an_error_says_what_happened_and_what_to_do() -> None:
    error = EbbtideError(ErrorCode.STALE_EPOCH, "Epoch 3 is below 5.", epoch=3)
    assert str(error) == "STALE_EPOCH: Epoch 3 is below 5. Stop: another holder owns the group. Take a new lease."
    assert error.body().wire() == {
        "code": "STALE_EPOCH",
        "message": "Epoch 3 is below 5.",
        "retryable": False,
        "nextAction": "Stop: another holder owns the group. Take a new lease.",
        "details": {"epoch": 3},
    }


def test_a_more_exact_next_action_replaces_the_default() -> None:
    error = EbbtideError(ErrorCode.NOT_FOUND, "No group a.", next_action="Use b.")
    assert EbbtideError.of(error.body()).next_action == "Use b."


def test_an_error_without_next_action_gets_the_default() -> None:
    error = EbbtideError.of(ErrorBody(code=ErrorCode.NOT_FOUND, message="No group a."))
    assert error.next_action == RULES[ErrorCode.NOT_FOUND].next_action


@pytest.mark.parametrize("sent", [{"a": 1}, None, "text"])
def test_a_code_of_a_newer_peer_is_read_as_internal(sent: Any) -> None:
    body = ErrorBody.model_validate({"code": "MOON_PHASE", "message": "no", "retryable": False, "details": sent})
    assert body.code is ErrorCode.INTERNAL
    assert body.details["newerCode"] == "MOON_PHASE"
    assert not EbbtideError.of(body).retryable


@pytest.mark.parametrize("raw", [{"message": "no code"}, {"code": 7, "message": "x"}, {"code": "INTERNAL"}, [], "text"])
def test_what_is_no_error_is_refused(raw: Any) -> None:
    with pytest.raises(ValidationError):
        ErrorBody.model_validate(raw)
