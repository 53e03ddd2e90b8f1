"""The client against a real operator whose engines are pretended: what the fake gateway says must be true."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ebbtide import Connection, EbbtideError, ErrorCode, Group, Loan, Progress, Stage
from ebbtide.cli.run import run
from ebbtide.client.connection import from_home

from tests.support.polling import eventually
from tests.unit.operator.house import House

WEIGHTS = {"w": np.arange(8, dtype=np.float32)}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house"))
    made.start()
    made.serving()
    yield made
    made.close()


@pytest.fixture
def connection(house: House, monkeypatch: pytest.MonkeyPatch) -> Connection:
    for name in ("EBBTIDE_URL", "EBBTIDE_TOKEN", "EBBTIDE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return from_home(house.home)


@pytest.fixture
def group(connection: Connection) -> Iterator[Group]:
    with Group("actor", connection=connection) as group:
        eventually(lambda: group.servers()[0].serving, 20)
        yield group


def version(group: Group) -> int:
    return group.servers()[0].weight_version


def test_the_whole_way(group: Group, house: House) -> None:
    before = version(group)
    reports: list[Progress] = []
    with group.borrow(on_progress=reports.append) as loan:
        assert group.state().owner.startswith(loan._core.terms.request().holder)
        assert not group.servers()[0].serving
        assert loan.freed_mib > 0
        assert loan.lend.phases
        published = loan.publish(WEIGHTS, version=before + 1)
        assert published.path.parent == house.layout.handoff("actor")
    assert loan.reclaimed is not None
    assert loan.reclaimed.weight_version == version(group) == before + 1
    assert group.state().owner == "engine"
    assert group.servers()[0].serving
    assert {Stage.LEND, Stage.PUBLISH, Stage.RETURN} <= {report.stage for report in reports}


def test_an_exception_brings_the_old_weights_back(group: Group) -> None:
    before = version(group)

    def fail(loan: Loan) -> None:
        loan.publish(WEIGHTS, version=before + 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), group.borrow() as loan:
        fail(loan)
    assert version(group) == before
    assert group.servers()[0].serving


def test_an_older_version_is_refused_and_the_old_weights_serve(group: Group) -> None:
    before = version(group)
    with pytest.raises(EbbtideError) as caught, group.borrow() as loan:
        loan.publish(WEIGHTS, version=max(1, before))
    assert caught.value.code is ErrorCode.VERSION_REGRESSION
    eventually(lambda: group.servers()[0].serving, 20)
    assert version(group) == before


def test_two_borrowers_take_turns(group: Group, connection: Connection) -> None:
    order: list[str] = []
    queued = threading.Event()

    def second() -> None:
        def report(progress: Progress) -> None:
            if progress.stage is Stage.QUEUE:
                queued.set()

        with Group("actor", connection=connection, holder="second") as other, other.borrow(on_progress=report):
            order.append("second")

    thread = threading.Thread(target=second)
    with group.borrow():
        thread.start()
        assert queued.wait(20)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_the_lease_outlives_its_ttl_while_it_is_renewed(group: Group) -> None:
    with group.borrow(ttl=4) as loan:
        began, first = time.monotonic(), group.state().lease
        eventually(lambda: time.monotonic() - began > 5)
        last = group.state().lease
        loan.check()
    assert first is not None
    assert last is not None
    assert first.id == last.id


def test_the_command_line(house: House, group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--home", str(house.home)]) == 0
    assert "chat-0" in capsys.readouterr().out
    assert run(["lend", "actor", "--for", "10ms", "--home", str(house.home)]) == 0
    assert "Serving version" in capsys.readouterr().out
    assert run(["lend", "actress", "--for", "10ms", "--home", str(house.home)]) == 1
    assert "NOT_FOUND there is no group actress; there are: actor." in capsys.readouterr().err
    assert run(["logs", "chat", "--agent", "--home", str(house.home)]) == 0


def test_why_and_timeline_of_a_real_group(
    house: House, group: Group, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with group.borrow():
        pass
    eventually(lambda: run(["why", "chat", "--home", str(house.home)]) == 0 and "as asked" in capsys.readouterr().out)
    assert run(["timeline", "actor", "--home", str(house.home)]) == 0
    shown = capsys.readouterr().out
    for word in ("owner", "chat-0", "engine, epoch", "Lent by", "Asleep", "Running"):
        assert word in shown
    assert run(["timeline", "actor", "--svg", str(tmp_path / "a.svg"), "--home", str(house.home)]) == 0
    assert "Lent" in (tmp_path / "a.svg").read_text()
    assert run(["why", "chatty", "--home", str(house.home)]) == 1
    assert "there is no server chatty; there are: chat" in capsys.readouterr().err


def test_a_wrong_token_is_refused(connection: Connection) -> None:
    wrong = Connection(connection.url, "wrong")
    with Group("actor", connection=wrong) as stranger, pytest.raises(EbbtideError) as caught:
        stranger.servers()
    assert caught.value.code is ErrorCode.UNAUTHENTICATED


def test_a_program_that_borrows_cannot_be_run_in_a_borrow(
    house: House, group: Group, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "from ebbtide import Group; Group('actor').borrow().__enter__()"
    command = [sys.executable, "-c", f"import os; os.environ['EBBTIDE_HOME'] = {str(house.home)!r}; {code}"]
    assert run(["lend", "actor", "--home", str(house.home), "--", *command]) == 1
    assert "by the `ebbtide lend` that started this process" in capfd.readouterr().err
    eventually(lambda: group.servers()[0].serving, 20)


def test_more_than_the_device_has_is_refused_before_anything_sleeps(group: Group) -> None:
    with pytest.raises(EbbtideError, match="more than the device's budget") as caught, group.borrow(need_mib=1e9):
        pass
    assert (caught.value.code, caught.value.details["field"]) == (ErrorCode.INVALID_REQUEST, "needMiB")
    assert group.servers()[0].serving


@pytest.mark.parametrize("wrong", [2**70, 0, -1, "7", True, 1.5])
def test_what_is_no_version_is_refused_when_it_is_published(group: Group, wrong: object) -> None:
    with group.borrow() as loan:
        with pytest.raises(EbbtideError, match="is no whole number") as caught:
            loan.publish(WEIGHTS, version=wrong)  # type: ignore[arg-type]
        assert (caught.value.code, caught.value.details["field"]) == (ErrorCode.INVALID_REQUEST, "version")
