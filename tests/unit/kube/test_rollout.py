"""Which outdated pod is replaced next: pure, over views of members."""

from dataclasses import replace
from typing import Any

from ebbtide_api.state import Phase
from ebbtide_operator.kube import rollout
from ebbtide_operator.plan import MemberView

from .views import view


def member(ordinal: int, phase: Phase | None = Phase.RUNNING, *, outdated: bool = True, **changes: Any) -> MemberView:
    return replace(view(f"tiny-{ordinal}", phase), outdated=outdated, **changes)


def next_to_replace(
    members: list[MemberView], replicas: int, ready: set[str] | None = None, awake: int | None = None
) -> str | None:
    """Ask with all awake, and every serving member known to the kubelet, unless told otherwise."""
    serving = {each.name for each in members if each.serving}
    return rollout.next_to_replace(
        members, replicas, replicas if awake is None else awake, serving if ready is None else ready
    )


def test_who_has_come_and_waits_for_its_device_is_on_its_way() -> None:
    """It holds no memory, as a sleeper; but its engine has not started, and nobody else would serve."""
    both = [member(0), member(1, Phase.PENDING_DEVICE, outdated=False)]
    assert next_to_replace(both, 2) is None
    assert next_to_replace(both, 2, awake=1) == "tiny-0", "one that shall sleep need not start"
    assert next_to_replace([member(0), member(1, Phase.ASLEEP, outdated=False)], 2) == "tiny-0"


def test_who_serves_counts_once_the_kubelet_sends_clients_to_it() -> None:
    both = [member(0, outdated=False), member(1)]
    assert next_to_replace(both, 2) == "tiny-1"
    assert next_to_replace(both, 2, {"tiny-1"}) is None, "no client would reach anybody"
    assert next_to_replace(both, 2, {"tiny-0"}) == "tiny-1"
    assert next_to_replace([member(0, Phase.ASLEEP, outdated=False), member(1)], 2, set()) == "tiny-1"


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
