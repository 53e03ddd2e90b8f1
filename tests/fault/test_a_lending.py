"""Borrow, publish, give back, on the whole real stack; and what requests see meanwhile."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from ebbtide import Drain, DrainMode, EbbtideError, ErrorCode, OnDeadline
from ebbtide_api.state import KV, Phase, Weights

from tests.support.models import medium
from tests.support.stack import Stack
from tests.support.stack_reference import CLOSE, FAR, Claim, surprises
from tests.support.stack_traffic import PROMPT, post, request, streaming

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
ENDLESS = 900  # tokens: half a minute, which no drain of these tests waits for
WAIT = Drain(mode=DrainMode.WAIT, timeout=60, on_deadline=OnDeadline.FAIL)


def test_the_oracle_itself_is_right(stack: Stack) -> None:
    """The engine's tokens are those of the published weights, says somebody who shares no code with it."""
    claims = [Claim(medium(seed), PROMPT, tokens) for seed, tokens in stack.oracle.items()]
    assert max(surprises(claims)) < CLOSE
    assert stack.oracle[0] != stack.oracle[1]
    assert surprises([Claim(medium(0), PROMPT, stack.oracle[1])])[0] > FAR


def test_two_borrows_are_measured_and_come_back_with_new_weights(stack: Stack) -> None:
    before = stack.group().epoch
    for seed in (0, 1):
        awake, state = stack.engine_mib(), stack.state()
        with stack.trainer.borrow() as loan:
            asleep = stack.engine_mib()
            (device,) = loan.lend.devices
            assert asleep == pytest.approx(device.residual_mib, rel=0.05)
            assert awake - asleep == pytest.approx(device.freed_mib, rel=0.05)
            # Of the KV cache only what requests touched was in use.
            assert device.freed_mib >= 0.95 * state.weights_mib
            assert state.baseline_mib is not None
            assert asleep <= 1.05 * state.baseline_mib
            lent = stack.state()
            assert (lent.phase, lent.weights, lent.kv) == (Phase.ASLEEP, Weights.PARKED, KV.DISCARDED)
            assert (lent.owner, lent.admission, stack.group().epoch) == ("a test", False, loan.epoch)
            version = stack.publish(loan, seed)
        stack.seed = seed
        assert loan.reclaimed is not None
        assert loan.reclaimed.weight_version == version
        assert stack.right()
        back = stack.state()
        assert (back.owner, back.committed_version, back.cache_epoch) == ("engine", version, version)
    # The owner changed four times.
    assert stack.group().epoch == before + 4


def test_after_an_exception_the_old_weights_serve(stack: Stack) -> None:
    version = stack.state().committed_version
    with pytest.raises(KeyError), stack.trainer.borrow() as loan:
        raise KeyError(stack.publish(loan, 1 - stack.seed))
    assert stack.right()
    assert stack.state().committed_version == version


def test_asleep_requests_are_refused_at_once_with_a_code(stack: Stack) -> None:
    with stack.trainer.borrow():
        for body in (request(4), request(4, stream=True)):
            # The timeout is a hang's, not a measurement: tests/bench measures.
            answer = post(stack.url, body, timeout=5)
            assert (answer.status_code, answer.json()["code"]) == (503, "ENGINE_ASLEEP")
            assert answer.json()["retryable"] is True
            assert int(answer.headers["retry-after"]) >= 1


def test_a_stream_in_flight_finishes_when_the_drain_waits(stack: Stack, pool: ThreadPoolExecutor) -> None:
    count = 150
    whole = stack.tokens(count)
    with streaming(stack.url, count) as stream:
        loan = stack.trainer.borrow(drain=WAIT)
        lent = pool.submit(loan.__enter__)
        stack.wait_for_phase(Phase.DRAINING)
        late = post(stack.url, request(4), timeout=5)
        assert (late.status_code, late.json()["code"]) == (503, "DRAINING")
        assert int(late.headers["retry-after"]) >= 1
        lent.result(120)
        stream.join()
        assert (stream.status, stream.reason, stream.done) == (200, "length", True)
        assert stream.tokens == whole
        assert loan.lend.aborted_requests == 0
        loan.__exit__(None, None, None)


def test_a_stream_in_flight_ends_with_its_partial_tokens_when_the_drain_aborts(stack: Stack) -> None:
    with streaming(stack.url, ENDLESS) as stream:
        with stack.trainer.borrow(drain=Drain(mode=DrainMode.ABORT)) as loan:
            stream.join()
            assert loan.lend.aborted_requests == 1
        assert (stream.status, stream.reason, stream.done) == (200, "abort", True)
        assert 0 < len(stream.tokens) < ENDLESS
        assert stream.tokens == stack.tokens(len(stream.tokens))


def test_a_drain_that_gives_up_says_what_remained_and_serving_goes_on(stack: Stack) -> None:
    short = Drain(mode=DrainMode.WAIT, timeout=0.5, on_deadline=OnDeadline.FAIL)
    before = stack.state()
    with streaming(stack.url, ENDLESS) as one, streaming(stack.url, ENDLESS) as two:
        with pytest.raises(EbbtideError) as caught, stack.trainer.borrow(drain=short):
            pytest.fail("it was lent with requests in flight")
        assert (caught.value.code, caught.value.status) == (ErrorCode.DRAIN_DEADLINE, 504)
        assert caught.value.details["remaining"]["running"] == 2
        assert stack.right()
        for stream in (one, two):
            stream.wait_for_more()
    after = stack.state()
    assert (after.owner, after.cycle, after.instance) == ("engine", before.cycle, before.instance)
