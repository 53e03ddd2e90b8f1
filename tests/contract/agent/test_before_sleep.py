"""What a member held before a sleep: measured, and of a time in which it held that."""

from __future__ import annotations

import time
from typing import Any

from ebbtide_api.verbs import Operation, Verb
from ebbtide_runtime.native import Field, Measurement

from tests.support.agents import MIB, Caller
from tests.support.rig import Member, back, sleep

Pair = tuple[Member, Caller]


def freed_mib(operation: Operation) -> Any:
    assert operation.result is not None
    return operation.result["devices"][0]["freedMiB"]


def test_what_was_measured_in_the_middle_of_a_wake_is_not_what_was_held_before_the_sleep(running: Pair) -> None:
    member, caller = running
    freed = freed_mib(sleep(caller))
    caller.do(Verb.WAKE_WEIGHTS)
    half = Measurement(member.page.get(Field.MEASURE_REQUEST), time.monotonic_ns(), 300 * MIB, 0, 1)
    back(caller)
    member.page.publish(half)
    assert freed_mib(sleep(caller)) == freed
