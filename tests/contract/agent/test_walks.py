"""Verbs in any order, and requests all the while: what must hold in every state holds in each."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ebbtide_api.state import PHASE_NUMBER, Phase
from ebbtide_api.verbs import Operation, OperationStatus, Verb
from ebbtide_runtime.agent.lifecycle import Event, Noop, Refuse, Start, decide
from ebbtide_runtime.native import Field, Page

from tests.support.agents import Caller, RefusedError
from tests.support.rig import SLEEP, Member, Stream, back, sleep

Pair = tuple[Member, Caller]
_RUNNING = PHASE_NUMBER[Phase.RUNNING]


@contextmanager
def watched(page: Page) -> Iterator[list[int]]:
    """Look at the page all the time: an open gate in another phase than Running is a violation."""
    wrong: list[int] = []
    ends = threading.Event()

    def watch() -> None:
        while not ends.wait(0.0005):
            # Twice, as the words are read apart: the gate may close between them, and then the phase changes.
            if page.admission and (phase := page.get(Field.PHASE)) != _RUNNING and page.admission:
                wrong.append(phase)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield wrong
    finally:
        ends.set()
        thread.join()


class Walker:
    """Picks verbs, and checks each answer against the table and each state against the invariants."""

    def __init__(self, member: Member, caller: Caller, seed: int) -> None:
        self.member = member
        self.caller = caller
        self.pick = random.Random(seed)
        self.version = 0
        self.seen: set[Phase] = set()

    def step(self) -> None:
        phase = self.caller.state().phase
        self.seen.add(phase)
        verb = self.pick.choice([verb for verb in Verb if verb is not Verb.RECONCILE])
        decision = decide(phase, Event(verb.value))
        body = self._body(verb, decision)
        answer = self._call(verb, body)
        if isinstance(answer, RefusedError):
            assert not isinstance(decision, Noop | Start) or answer.code in _BESIDE_THE_TABLE, (phase, verb, answer)
        else:
            assert not isinstance(decision, Refuse) or answer.noop, (phase, verb)
            assert answer.status is OperationStatus.DONE, answer
        self._invariants()

    def _call(self, verb: Verb, body: dict[str, Any]) -> Operation | RefusedError:
        try:
            return self.caller.ended(verb, body)
        except RefusedError as refused:
            return refused

    def _body(self, verb: Verb, decision: object) -> dict[str, Any]:
        if verb is Verb.BEGIN_UPDATE:
            self.version += 1
            return self.member.publish(self.version)
        bodies = {
            Verb.GRANT: {"boot": 1},
            Verb.COMMIT_UPDATE: {"version": self.caller.state().pending_version or max(1, self.version)},
            Verb.SLEEP: {**SLEEP, "level": self.pick.choice([0, 0, 1, 2])},
        }
        return bodies.get(verb, {})

    def _invariants(self) -> None:
        vector, fleet = self.caller.state(), self.member.engine.fleet
        assert vector.admission is (vector.phase is Phase.RUNNING)
        assert vector.boot == 1
        assert vector.operation is None
        if vector.phase is Phase.RUNNING:
            assert fleet.whole
            assert not self.member.engine.paused
            assert {rank.version for rank in fleet.ranks} == {vector.committed_version} == {vector.cache_epoch}
        if vector.phase is Phase.ASLEEP:
            assert self.member.engine.used <= 121 << 20


# Refusals that depend on more than the phase.
_BESIDE_THE_TABLE = {"LEVEL_UNSUPPORTED", "WEIGHTS_NOT_COMMITTED", "ILLEGAL_TRANSITION"}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_walk_keeps_the_invariants(running: Pair, seed: int) -> None:
    member, caller = running
    walker = Walker(member, caller, seed)
    with watched(member.page) as wrong:
        for _ in range(80):
            walker.step()
    assert wrong == []
    assert len(walker.seen) >= 5


def test_requests_that_race_a_sleep_complete_or_are_refused(running: Pair) -> None:
    """None is lost, none hangs, and none gets an empty 200."""
    member, caller = running
    streams: list[Stream] = []

    def send() -> None:
        streams.extend(Stream(member, 5) for _ in range(12))

    senders = [threading.Thread(target=send) for _ in range(4)]
    with watched(member.page) as wrong:
        for sender in senders:
            sender.start()
        sleep(caller)
        for sender in senders:
            sender.join(30)
    ends = {(stream.status, stream.end().startswith("end length")) for stream in streams}
    assert len(streams) == 48
    assert ends <= {(200, True), (503, False)}
    assert wrong == []
    assert member.page.inflight() == 0
    caller.do(Verb.WAKE_WEIGHTS)
    back(caller)
    assert Stream(member, 2).end() == "end length"
