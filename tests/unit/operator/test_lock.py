"""One operator a home, and its one port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_operator.app import _listen
from ebbtide_operator.lock import HomeLock

HOLDER = """
import sys
from pathlib import Path
from ebbtide_operator.app import _listen
from ebbtide_operator.lock import HomeLock
with HomeLock(Path(sys.argv[1])) as lock:
    lock.say("http://127.0.0.1:1234")
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_operator_is_told_of_the_first_and_a_crash_frees_the_home(tmp_path: Path) -> None:
    path = tmp_path / "home" / "lock"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    first.stdout.readline()
    with pytest.raises(EbbtideError) as caught, HomeLock(path):
        pass
    assert caught.value.code is ErrorCode.OPERATION_IN_PROGRESS
    assert caught.value.details == {"pid": first.pid, "url": "http://127.0.0.1:1234"}
    assert str(first.pid) in caught.value.message
    assert "http://127.0.0.1:1234" in caught.value.message
    first.send_signal(signal.SIGKILL)
    first.communicate()
    with HomeLock(path):
        assert str(os.getpid()) in path.read_text()
    with HomeLock(path):
        pass


def test_a_lock_whose_words_are_lost_still_holds(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with HomeLock(path):
        path.write_text("")
        with pytest.raises(EbbtideError, match="pid unknown"), HomeLock(path):
            pass


def test_the_gateways_answers_are_sent_at_once() -> None:
    """Without TCP_NODELAY every answer of two writes waits 40 ms for the other side's delayed acknowledgement."""

    async def accepted() -> bool:
        sent: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def hello(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            sock = writer.get_extra_info("socket")
            sent.set_result(bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            writer.close()

        with _listen(0) as listener:
            server = await asyncio.start_server(hello, sock=listener)
            _, writer = await asyncio.open_connection(*listener.getsockname())
            answer = await sent
            writer.close()
            await writer.wait_closed()
            server.close()
            await server.wait_closed()
        return answer

    assert asyncio.run(accepted())


def test_a_port_that_is_taken_is_said() -> None:
    with _listen(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EbbtideError, match=f"cannot listen on 127.0.0.1:{port}"):
            _listen(port)
