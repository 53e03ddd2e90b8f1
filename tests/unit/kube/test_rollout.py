"""Which outdated pod is replaced next: pure, over views of members."""

from dataclasses import replace
from typing import Any

from ebbtide_api.state import Phase
from ebbtide_operator.kube.rollout import next_to_replace
from ebbtide_operator.plan import MemberView

from .views import view


def member(ordinal: int, phase: Phase | None = Phase.RUNNING, *, outdated: bool = True, **changes: Any) -> MemberView:
    return replace(view(f"tiny-{ordinal}", phase), outdated=outdated, **changes)


def test_the_highest_ordinal_goes_first_and_the_next_when_it_is_back() -> None:
    assert next_to_replace([member(0), member(1), member(2)], 3) == "tiny-2"
    assert next_to_replace([member(0), member(1)], 3) is None
    assert next_to_replace([member(0), member(1), member(2, Phase.STARTING, outdated=False)], 3) is None
    assert next_to_replace([member(0), member(1), member(2, outdated=False)], 3) == "tiny-1"
    assert next_to_replace([member(0, outdated=False), member(1, outdated=False)], 2) is None


def test_who_does_not_work_anyway_goes_first() -> None:
    assert next_to_replace([member(0, None), member(1)], 2) == "tiny-0"
    assert next_to_replace([member(0, Phase.FAULTED), member(1, None, outdated=False)], 2) == "tiny-0"


def test_who_serves_is_not_taken_for_broken_while_its_agent_is_silent() -> None:
    both = [member(0, None), member(1, None)]
    assert next_to_replace(both, 2, {"tiny-0", "tiny-1"}) == "tiny-1"
    assert next_to_replace([both[0], member(1, Phase.STARTING, outdated=False)], 2, {"tiny-0"}) is None
    assert next_to_replace(both, 2, {"tiny-1"}) == "tiny-0"


def test_sleepers_are_replaced_like_the_others_and_busy_ones_are_waited_for() -> None:
    assert next_to_replace([member(0, Phase.ASLEEP), member(1, Phase.PENDING_DEVICE)], 2) == "tiny-1"
    assert next_to_replace([member(0), member(1, busy="sleep", outdated=False)], 2) is None
