"""Conditions keep the time of their last change, and only that."""

import pytest
from ebbtide_api.conditions import Condition, ConditionStatus, ConditionType, merge
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def condition(
    kind: str = "Ready", status: str = "True", at: str = EARLY, reason: str = "Serving", message: str = "ok"
) -> Condition:
    return Condition(
        type=kind,
        status=ConditionStatus(status),
        last_transition_time=at,
        reason=reason,
        message=message,
        observed_generation=1,
    )


def test_the_types_of_the_design() -> None:
    assert [str(one) for one in ConditionType] == [
        "Ready",
        "Reconciling",
        "Stalled",
        "Serving",
        "MemoryReleased",
        "Paired",
        "CacheTiersReady",
    ]


def test_an_unchanged_status_keeps_its_time_and_takes_the_new_reason() -> None:
    (merged,) = merge([condition()], [condition(at=LATE, reason="Asleep", message="zzz")])
    assert (merged.last_transition_time, merged.reason, merged.message) == (EARLY, "Asleep", "zzz")


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_changed_status_takes_the_new_time(status: str) -> None:
    (merged,) = merge([condition()], [condition(status=status, at=LATE)])
    assert (merged.last_transition_time, merged.status) == (LATE, status)


def test_other_conditions_stay_in_their_order() -> None:
    old = [condition("Ready"), condition("Theirs"), condition("Serving")]
    merged = merge(old, [condition("Serving", "False", LATE), condition("Paired", at=LATE)])
    assert [one.type for one in merged] == ["Ready", "Theirs", "Serving", "Paired"]
    assert merged[1] == old[1]


conditions = st.lists(
    st.builds(
        condition,
        st.sampled_from(ConditionType),
        st.sampled_from(["True", "False", "Unknown"]),
        st.sampled_from([EARLY, LATE]),
    ),
    max_size=6,
    unique_by=lambda one: one.type,
)


@given(conditions, conditions)
def test_merging_again_changes_nothing(old: list[Condition], new: list[Condition]) -> None:
    once = merge(old, new)
    assert merge(once, new) == once
    assert {one.type for one in once} == {one.type for one in [*old, *new]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "no spaces"},
        {"kind": ""},
        {"status": "Perhaps"},
        {"reason": ""},
        {"reason": "has space"},
        {"at": "x" * 41},
    ],
)
def test_a_wrong_condition_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises((ValidationError, ValueError)):
        condition(**wrong)
