"""The lease: renewed by a thread, lost by the gateway's word, given up when the trainer is interrupted or dies."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from ebbtide import (
    Connection,
    EbbtideError,
    ErrorCode,
    Group,
    Loan,
)

from tests.support.fake_gateway import TOKEN, FakeGateway, Fault
from tests.support.polling import eventually

WEIGHTS = {"w": np.arange(8, dtype=np.float32)}


def test_the_lease_is_renewed_while_the_trainer_is_busy(group: Group, gateway: FakeGateway) -> None:
    gateway.ttl_counts = False
    with group.borrow(ttl=0.3):
        deadline = time.monotonic() + 20
        # A training step that never yields to anybody.
        while len(gateway.seen("PUT", "/lease/")) < 4 and time.monotonic() < deadline:
            sum(range(1000))
    assert len(gateway.seen("PUT", "/lease/")) >= 4


def test_renewing_ends_with_the_loan(group: Group, gateway: FakeGateway) -> None:
    gateway.ttl_counts = False
    with group.borrow(ttl=0.3):
        eventually(lambda: gateway.seen("PUT", "/lease/"))
    assert not [thread for thread in threading.enumerate() if thread.name == "ebbtide-actor"]


def test_a_lost_lease_is_told_by_callback_and_at_the_next_call(group: Group, gateway: FakeGateway) -> None:
    gateway.ttl_counts = False
    told: list[EbbtideError] = []

    def lose(loan: Loan) -> None:
        gateway.take_away()
        eventually(lambda: told)
        for call in (loan.check, lambda: loan.publish(WEIGHTS, version=1)):
            with pytest.raises(EbbtideError) as inside:
                call()
            assert inside.value is loan.lost is told[0]

    with pytest.raises(EbbtideError) as caught, group.borrow(ttl=0.3, on_lost=told.append) as loan:
        lose(loan)
    assert caught.value.code is ErrorCode.STALE_EPOCH
    assert gateway.performed == ["lend"]
    assert not any(gateway.handoff.glob("v*"))


def test_a_late_holder_is_refused_even_if_it_has_not_heard(group: Group, gateway: FakeGateway) -> None:
    with pytest.raises(EbbtideError) as caught, group.borrow(ttl=60):
        gateway.take_away()
    assert caught.value.code is ErrorCode.STALE_EPOCH


def test_renewing_outlives_a_gateway_that_is_away(group: Group, gateway: FakeGateway) -> None:
    gateway.ttl_counts = False  # a gateway that restarts gives every lease a fresh TTL
    with group.borrow(ttl=0.3) as loan:
        faults = [
            Fault.drop_before(),
            Fault.answer(503),
            Fault.drop_before(),
            Fault.answer(500, "broken"),
            Fault.answer(503),
        ]
        gateway.fault("PUT", "/lease/", *faults)
        eventually(lambda: len(gateway.seen("PUT", "/lease/")) > 6)
        assert loan.lost is None


TRAINER = """
import os, sys, time
from ebbtide import Connection, Group
url, token = sys.argv[1:]
with Group("actor", connection=Connection(url, token)).borrow(ttl=1.5):
    print("borrowed", flush=True)
    time.sleep(60)
"""


def test_a_killed_trainer_renews_no_more(connection: Connection, gateway: FakeGateway) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, connection.url, TOKEN], stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "borrowed\n"
        eventually(lambda: gateway.seen("PUT", "/lease/"))
        trainer.kill()
    eventually(lambda: gateway.current is None)
    assert gateway.owner == "engine"


def test_a_real_ctrl_c_gives_back(connection: Connection, gateway: FakeGateway) -> None:
    command = [sys.executable, "-c", TRAINER, connection.url, TOKEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "borrowed\n"
        trainer.send_signal(2)
        _, errors = trainer.communicate(timeout=10)
    assert "KeyboardInterrupt" in errors
    assert gateway.performed == ["lend", "reclaim"]
    assert gateway.current is None


def test_a_real_ctrl_c_while_it_waits_for_the_lend(connection: Connection, gateway: FakeGateway) -> None:
    gateway.hold("lend")
    command = [sys.executable, "-c", TRAINER, connection.url, TOKEN]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as trainer:
        eventually(lambda: gateway.seen("GET", "/v1/operations/"), 30)
        trainer.send_signal(2)
        _, errors = trainer.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert gateway.seen("DELETE", "/lease/")
    assert gateway.current is None
