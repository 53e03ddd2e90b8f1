"""`ebbtide proxy` as a process: it says where it is, and gives the lease back when it is told to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from ebbtide.cli.run import USAGE, run

from tests.support.fake_gateway import TOKEN, FakeGateway
from tests.support.gateway_http import serving
from tests.support.polling import eventually


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    (tmp_path / "handoff").mkdir()
    made = FakeGateway(tmp_path / "handoff")
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_gives_the_lease_back_when_it_is_told_to_end(gateway: FakeGateway, number: signal.Signals) -> None:
    with serving(gateway) as url:
        environment = {**os.environ, "EBBTIDE_URL": url, "EBBTIDE_TOKEN": TOKEN, "COLUMNS": "200"}
        command = [sys.executable, "-u", "-m", "ebbtide", "proxy", "actor", "--port", "0", "--holder", "trl"]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.match(r"(http://127\.0\.0\.1:\d+) is group actor at http", said)
            assert found, said
            assert httpx2.post(f"{found[1]}/sleep", trust_env=False, timeout=20).status_code == 200
            assert gateway.owner == "trl"
            process.send_signal(number)
            _, errors = process.communicate(timeout=20)
        assert (process.returncode, "Giving back." in errors) == (0, True)
        eventually(lambda: gateway.current is None and gateway.owner == "engine")


def test_a_port_that_is_taken_is_named(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(gateway) as url:
        monkeypatch.setenv("EBBTIDE_URL", url)
        monkeypatch.setenv("EBBTIDE_TOKEN", TOKEN)
        port = url.rpartition(":")[2]
        assert run(["proxy", "actor", "--port", port]) == USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "0 takes a free one" in said
