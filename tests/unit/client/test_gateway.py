"""Retries, deadlines and errors of single calls, on a clock that jumps: nothing here waits."""

from collections.abc import Callable
from typing import Any

import pytest
from ebbtide import EbbtideError, ErrorCode
from ebbtide.client.borrowing import Borrowing, Terms
from ebbtide.client.flow import Answer, Flow, Pause, Reply, Send, Silence
from ebbtide.client.gateway import POLL, Call, Gateway
from ebbtide.weights import Published
from ebbtide_api.errors import ErrorBody
from ebbtide_api.state import Phase
from ebbtide_api.verbs import Lease, LeaseStage, LendRequest, Nothing, Operation, OperationStatus

GONE = Silence("ConnectError: refused")
DONE = Operation(id="op-1", verb="lend", target="actor", status=OperationStatus.DONE, result={"epoch": 1})
RUNNING = DONE.model_copy(update={"status": OperationStatus.RUNNING, "result": None, "phase": Phase.DRAINING})


class World:
    """Answers a flow from a script, and keeps its time. The last answer repeats."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.sent: list[Send] = []
        self.pauses: list[float] = []
        self.now = 0.0
        self.gateway = Gateway("http://gateway", clock=lambda: self.now, jitter=lambda: 0.5)

    def run(self, flow: Flow[Any]) -> Any:
        answer: Answer | None = None
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = self._do(effect)

    def _do(self, effect: Send | Pause) -> Answer | None:
        if isinstance(effect, Pause):
            self.pauses.append(effect.seconds)
            self.now += effect.seconds
            return None
        self.sent.append(effect)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.now += effect.timeout if isinstance(answer, Silence) else 0.01
        return answer


def refusal(code: ErrorCode, **details: Any) -> Reply:
    error = EbbtideError(code, "no.", **details)
    return Reply(error.status, error.body().wire())


def operation(found: Operation) -> Reply:
    return Reply(202, found.wire())


def perform(world: World, timeout: float = 60.0, watch: Callable[[Operation], None] = lambda operation: None) -> Any:
    flow = world.gateway.perform("/v1/groups/actor:lend", LendRequest(), epoch=7, timeout=timeout, watch=watch)
    return world.run(flow)


@pytest.mark.parametrize("first", [GONE, Reply(503), Reply(425), Reply(502, "bad gateway")])
def test_what_may_pass_is_tried_again_with_the_same_key(first: Answer) -> None:
    world = World(first, first, operation(DONE))
    assert perform(world).id == "op-1"
    keys = {sent.headers["Idempotency-Key"] for sent in world.sent}
    assert len(world.sent) == 3
    assert len(keys) == 1
    assert {sent.headers["Ebbtide-Epoch"] for sent in world.sent} == {"7"}


@pytest.mark.parametrize(
    "code",
    [ErrorCode.STALE_EPOCH, ErrorCode.VERSION_REGRESSION, ErrorCode.UNAUTHENTICATED, ErrorCode.OPERATION_MISMATCH],
)
def test_what_will_not_pass_is_raised_at_once(code: ErrorCode) -> None:
    world = World(refusal(code, epoch=9))
    with pytest.raises(EbbtideError) as caught:
        perform(world)
    assert caught.value.code is code
    assert caught.value.details == {"epoch": 9}
    assert len(world.sent) == 1


def test_silence_to_the_end_is_unreachable_and_says_so() -> None:
    world = World(GONE)
    with pytest.raises(EbbtideError) as caught:
        world.run(world.gateway.answer(Call("GET", "/v1/groups", patience=30)))
    assert caught.value.code is ErrorCode.UNREACHABLE
    assert "http://gateway did not answer GET /v1/groups within 30 s (ConnectError: refused)" in caught.value.message
    assert world.now <= 31


def test_a_server_that_stays_busy_is_quoted() -> None:
    world = World(refusal(ErrorCode.UNREACHABLE, member="chat-0"))
    with pytest.raises(EbbtideError) as caught:
        world.run(world.gateway.answer(Call("GET", "/v1/groups", patience=5)))
    assert caught.value.details == {"member": "chat-0"}


def test_no_try_outlives_the_deadline() -> None:
    world = World(GONE)
    with pytest.raises(EbbtideError):
        world.run(world.gateway.answer(Call("GET", "/", patience=12)))
    assert world.sent[0].timeout == 10
    assert all(sent.timeout <= 10 for sent in world.sent)
    assert world.now <= 12.2


def test_the_pauses_grow() -> None:
    world = World(*[Reply(503)] * 8, Reply(200, []))
    assert world.run(world.gateway.groups()) == []
    assert world.pauses == sorted(world.pauses)
    assert world.pauses[0] == 0.05
    assert world.pauses[-1] == 2.0


def test_retry_after_is_obeyed() -> None:
    world = World(Reply(503, None, {"Retry-After": "3"}), Reply(200, []))
    world.run(world.gateway.servers())
    assert world.pauses == [3.0]


def test_an_operation_is_read_until_it_is_done() -> None:
    reports: list[Operation] = []
    world = World(operation(RUNNING), operation(RUNNING), GONE, operation(DONE))
    assert perform(world, watch=reports.append).status is OperationStatus.DONE
    assert [sent.method for sent in world.sent] == ["POST", "GET", "GET", "GET"]
    assert world.sent[1].path == f"/v1/operations/op-1?wait={POLL:g}"
    assert [each.status for each in reports] == [OperationStatus.RUNNING, OperationStatus.RUNNING, OperationStatus.DONE]


def test_an_operation_that_is_lost_is_started_again_with_the_same_key() -> None:
    world = World(operation(RUNNING), refusal(ErrorCode.NOT_FOUND), operation(DONE))
    perform(world)
    assert [sent.method for sent in world.sent] == ["POST", "GET", "POST"]
    assert world.sent[0].headers == world.sent[2].headers


def test_another_operation_in_the_way_is_waited_for() -> None:
    world = World(refusal(ErrorCode.OPERATION_IN_PROGRESS), operation(DONE))
    assert perform(world).id == "op-1"
    forever = World(refusal(ErrorCode.OPERATION_IN_PROGRESS, operation="op-0"))
    with pytest.raises(EbbtideError) as caught:
        perform(forever, timeout=5)
    assert caught.value.code is ErrorCode.OPERATION_IN_PROGRESS
    assert 10 < forever.now < 11


def test_an_operation_that_outlives_the_patience_is_unknown_not_failed() -> None:
    world = World(operation(RUNNING))
    with pytest.raises(EbbtideError) as caught:
        perform(world, timeout=2)
    assert caught.value.code is ErrorCode.PHASE_DEADLINE
    assert "not done after 2 s (in phase Draining)" in caught.value.message
    assert caught.value.details == {"operation": "op-1"}


def test_a_failed_operation_raises_its_error() -> None:
    body = ErrorBody(code=ErrorCode.DRAIN_DEADLINE, message="3 remain.", next_action="Wait.", details={"remaining": 3})
    failed = DONE.model_copy(update={"status": OperationStatus.FAILED, "error": body})
    with pytest.raises(EbbtideError) as caught:
        perform(World(operation(failed)))
    assert (caught.value.code, caught.value.message) == (ErrorCode.DRAIN_DEADLINE, "3 remain.")
    assert caught.value.details == {"remaining": 3, "operation": "op-1"}
    assert caught.value.next_action == "Wait."


def test_a_failure_without_a_reason_is_still_an_error() -> None:
    with pytest.raises(EbbtideError, match="unexplained"):
        perform(World(operation(DONE.model_copy(update={"status": OperationStatus.FAILED}))))


@pytest.mark.parametrize("body", ["<html>", {"detail": "Not Found"}, None])
def test_an_answer_of_somebody_else_is_quoted(body: Any) -> None:
    world = World(Reply(404, body))
    with pytest.raises(EbbtideError, match="http://gateway answered GET /v1/groups with 404") as caught:
        world.run(world.gateway.groups())
    assert "gateway" in caught.value.next_action


def test_a_result_that_is_none_is_quoted() -> None:
    world = World(Reply(200, {"name": 1}))
    with pytest.raises(EbbtideError, match="answered GET /v1/groups/actor with 200"):
        world.run(world.gateway.group("actor"))


@pytest.mark.parametrize("status", [200, 204, 404, 410, 412])
def test_a_lease_that_has_ended_is_given_back(status: int) -> None:
    lease = Lease(id="a/b", group="the group", holder="me", epoch=2, stage=LeaseStage.LENT, ttl_seconds=30)
    world = World(Reply(status))
    assert world.run(world.gateway.release(lease)) is None
    assert world.sent[0].path == "/v1/groups/the%20group/lease/a%2Fb"
    refused = World(refusal(ErrorCode.UNAUTHENTICATED))
    with pytest.raises(EbbtideError):
        refused.run(refused.gateway.release(lease))


def test_reading_carries_no_key() -> None:
    assert Call("GET", "/").headers == {}
    assert Call("POST", "/", Nothing().wire(), epoch=0, key="k").headers == {
        "Idempotency-Key": "k",
        "Ebbtide-Epoch": "0",
    }


def _never(_flow: Flow[Published]) -> Published:
    raise AssertionError("nothing was published")


def test_a_lease_whose_answer_never_came_is_given_up() -> None:
    world = World(GONE)
    borrowing = Borrowing(
        world.gateway, Terms("actor"), keep=lambda lease, on_lost: pytest.fail("never granted"), alone=_never
    )
    with pytest.raises(EbbtideError) as caught:
        world.run(borrowing.take())
    assert caught.value.code is ErrorCode.UNREACHABLE
    asked = world.sent[0].headers["Idempotency-Key"]
    assert world.sent[-1].method == "DELETE"
    assert world.sent[-1].path == f"/v1/groups/actor/lease/{asked}"
