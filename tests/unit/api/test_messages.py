"""What holds for every message: round trips, wire names, frozen, strict about what it does not know."""

import json
import re
from typing import Any

import pytest
from ebbtide_api.base import Message, Reading, wire_name
from ebbtide_api.errors import ErrorBody
from ebbtide_api.state import DeviceMemory, StateVector
from ebbtide_api.verbs import LeaseRequest, SleepRequest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.api.wire import messages, wire

ALL = messages()
WIRE_NAME = re.compile(r"[a-z]+[a-z0-9]*([A-Z][A-Za-z0-9]*)*")


def valid(model: type[Message], data: st.DataObject) -> Message:
    """Draw a message. Only a rule over several fields may refuse what each field allows."""
    message, kinds = validate(model, data.draw(wire(model)))
    assert kinds <= {"rule"}
    assume(message is not None)
    assert message is not None
    return message


def validate(model: type[Message], raw: dict[str, Any]) -> tuple[Message | None, set[str]]:
    try:
        return model.model_validate(raw), set()
    except ValidationError as error:
        return None, {fault["type"] for fault in error.errors()}


def test_the_list_of_messages_is_not_empty() -> None:
    names = {one.__name__ for one in ALL}
    assert {
        "StateVector",
        "Operation",
        "Manifest",
        "MemberConfig",
        "InferenceServer",
        "KVCachePolicy",
        "ErrorBody",
    } <= names
    assert len(ALL) > 60


@pytest.mark.parametrize("model", ALL, ids=lambda model: model.__name__)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_message_survives_the_wire(model: type[Message], data: st.DataObject) -> None:
    message = valid(model, data)
    sent = json.loads(json.dumps(message.wire()))
    assert model.model_validate(sent) == message
    assert model.model_validate_json(json.dumps(sent)).wire() == sent


@pytest.mark.parametrize("model", ALL, ids=lambda model: model.__name__)
def test_wire_names_are_camel_case_and_unique(model: type[Message]) -> None:
    aliases = [field.alias for field in model.model_fields.values()]
    assert all(alias and WIRE_NAME.fullmatch(alias) for alias in aliases), aliases
    assert len(set(aliases)) == len(aliases)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("weight_version", "weightVersion"),
        ("used_mib", "usedMiB"),
        ("need_mib", "needMiB"),
        ("max_ttl", "maxTTL"),
        ("ttl_seconds", "ttlSeconds"),
        ("header_crc32c", "headerCrc32c"),
        ("crc32c", "crc32c"),
        ("dram_to_disk", "dramToDisk"),
        ("since", "since"),
    ],
)
def test_wire_name(name: str, expected: str) -> None:
    assert wire_name(name) == expected


def test_numbers_in_mib_are_spelled_as_the_design_spells_them() -> None:
    sent = DeviceMemory(id="cpu0", used_mib=1.5, free_mib=2, total_mib=3.5).wire()
    assert sent == {"id": "cpu0", "usedMiB": 1.5, "freeMiB": 2.0, "totalMiB": 3.5}


@pytest.mark.parametrize("model", [one for one in ALL if one.model_fields], ids=lambda model: model.__name__)
def test_a_message_cannot_be_changed(model: type[Message]) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(model.model_construct(), next(iter(model.model_fields)), None)


def test_absent_fields_are_not_sent() -> None:
    assert "needMiB" not in SleepRequest().wire()
    assert SleepRequest(need_mib=3).wire()["needMiB"] == 3


def test_python_names_and_wire_names_are_both_read() -> None:
    by_name = LeaseRequest.model_validate({"holder": "t", "ttl_seconds": 5, "need_mib": 1})
    assert by_name == LeaseRequest.model_validate({"holder": "t", "ttlSeconds": 5, "needMiB": 1})


def test_a_request_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        LeaseRequest.model_validate({"holder": "t", "tttl": 5})


def test_a_reading_from_a_newer_peer_drops_what_it_does_not_know() -> None:
    raw: dict[str, Any] = {
        "name": "m-0",
        "server": "m",
        "group": "g",
        "phase": "Running",
        "admission": True,
        "instance": {"uid": "u", "cgroup": "new"},
        "temperature": 40,
    }
    state = StateVector.model_validate(raw)
    assert state.instance.uid == "u"
    assert "temperature" not in state.wire()


def test_what_a_peer_reports_is_a_reading_and_what_it_asks_is_not() -> None:
    assert issubclass(StateVector, Reading)
    assert issubclass(ErrorBody, Reading)
    assert not issubclass(SleepRequest, Reading)
