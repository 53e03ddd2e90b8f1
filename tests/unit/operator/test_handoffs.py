"""New weights come into a group in one way, or not at all."""

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.server import Handoff
from ebbtide_operator.handoffs import Ways, differ, is_open, require_one

NONE, SHARED, STREAM = Handoff.NONE, Handoff.SHARED_MEMORY, Handoff.STREAM


@pytest.mark.parametrize("ways", [{}, {"a": STREAM}, {"a": SHARED, "b": SHARED}])
def test_servers_that_agree_take_new_weights(ways: Ways) -> None:
    require_one("actor", ways)
    assert is_open(ways)
    assert differ(ways) == ""


@pytest.mark.parametrize("ways", [{"b": NONE}, {"a": STREAM, "b": NONE}, {"a": STREAM, "c": SHARED, "b": NONE}])
def test_a_server_that_takes_none_closes_its_group_by_name(ways: Ways) -> None:
    assert not is_open(ways)
    with pytest.raises(EbbtideError) as caught:
        require_one("actor", ways)
    error = caught.value
    assert error.code is ErrorCode.TRANSPORT_IMPOSSIBLE
    assert error.message == "group actor takes no new weights: spec.weights.handoff is None for b"
    assert "without a version" in error.next_action
    assert error.details == {"field": "spec.weights.handoff", "servers": ["b"]}


def test_servers_of_two_minds_are_both_named() -> None:
    ways = {"a": STREAM, "b": STREAM, "c": SHARED}
    assert not is_open(ways)
    with pytest.raises(EbbtideError) as caught:
        require_one("actor", ways)
    assert caught.value.code is ErrorCode.TRANSPORT_IMPOSSIBLE
    assert "c takes new weights by SharedMemory and a by Stream" in caught.value.message
    assert "same for all" in caught.value.next_action


def test_who_takes_none_agrees_with_everybody() -> None:
    assert differ({"a": STREAM, "b": NONE}) == differ({"a": SHARED, "b": NONE}) == ""
