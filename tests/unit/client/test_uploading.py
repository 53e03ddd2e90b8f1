"""How a version is sent, against a script of answers: nothing here waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ebbtide import EbbtideError, ErrorCode
from ebbtide.client.flow import Answer, Pause, Reply, Send
from ebbtide.client.gateway import Gateway
from ebbtide.client.uploading import Uploading, blocks
from ebbtide.crc32c import crc32c
from ebbtide.safetensors import header_of
from ebbtide.tensors import pieces_of
from ebbtide_api.manifest import MANIFEST, Manifest
from ebbtide_api.upload import CRC32C
from ebbtide_api.verbs import Lease, LeaseStage

LEASE = Lease(
    id="l", group="actor", holder="t", epoch=4, stage=LeaseStage.LENT, ttl_seconds=30, handoff="handoff", streams=True
)
TENSORS = {"a": np.arange(1000, dtype=np.float32), "b": np.ones(3, dtype=np.float16)}
FILE = "model-00001.safetensors"


def error(code: ErrorCode, **details: Any) -> Reply:
    refusal = EbbtideError(code, "scripted", **details)
    return Reply(refusal.status, refusal.body().wire())


class Members:
    """Keeps what was sent, as the gateway would. `answers` come first, for calls that they match."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.sent: list[Send] = []
        self.advanced: list[int] = []
        self.published = False
        self.answers: list[tuple[Callable[[Send], bool], Answer | Callable[[], Answer]]] = []

    def run(self, tensors: dict[str, Any] = TENSORS) -> Any:
        gateway = Gateway("http://gateway", clock=lambda: 0.0, jitter=lambda: 0.5)
        flow = Uploading(gateway, LEASE, 7, pieces_of(tensors), self.advanced.append, lambda: 0.0).run()
        answer: Answer | None = None
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = None if isinstance(effect, Pause) else self._answer(effect)

    def _answer(self, send: Send) -> Answer:
        self.sent.append(send)
        for at, (matches, scripted) in enumerate(self.answers):
            if matches(send):
                del self.answers[at]
                return scripted() if callable(scripted) else scripted
        return self._keep(send)

    def _keep(self, send: Send) -> Answer:
        path, _, query = send.path.partition("?")
        if send.method == "PUT":
            assert send.content is not None
            assert int(send.headers[CRC32C]) == crc32c(send.content)
            file = self.files.setdefault(path.rpartition("/")[2], bytearray())
            offset = int(query.removeprefix("offset="))
            assert offset <= len(file)
            file[offset : offset + len(send.content)] = send.content
        received = {name: len(data) for name, data in self.files.items()}
        return Reply(200, {"version": 7, "published": self.published, "received": received})

    def methods(self) -> list[str]:
        return [send.method for send in self.sent]


def put(send: Send) -> bool:
    return send.method == "PUT" and FILE in send.path


def test_what_is_sent_is_a_file_that_its_manifest_vouches_for() -> None:
    members = Members()
    done = members.run()
    data = bytes(members.files[FILE])
    assert data.startswith(header_of(pieces_of(TENSORS)))
    assert data.endswith(TENSORS["a"].tobytes() + TENSORS["b"].tobytes())
    manifest = Manifest.model_validate_json(members.files[MANIFEST])
    assert [(file.name, file.length) for file in manifest.files] == [(FILE, len(data))]
    for tensor in manifest.tensors:
        assert crc32c(data[tensor.offset : tensor.offset + tensor.length]) == tensor.crc32c
    assert crc32c(data[: manifest.files[0].header_length]) == manifest.files[0].header_crc32c
    assert (done.version, str(done.path), done.tensors, done.bytes) == (7, "handoff/v7", 2, 4006)
    assert sum(members.advanced) == len(data)
    assert {send.headers["Ebbtide-Epoch"] for send in members.sent} == {"4"}
    assert members.methods() == ["POST", "PUT", "PUT", "POST"]


def test_a_damaged_piece_is_sent_again() -> None:
    members = Members()
    members.answers = [(put, error(ErrorCode.MANIFEST_INVALID, reason="CHECKSUM_MISMATCH"))] * 2
    members.run()
    assert len([send for send in members.sent if put(send)]) == 3


def test_a_line_that_damages_everything_is_given_up_and_the_memory_given_back() -> None:
    members = Members()
    members.answers = [(put, error(ErrorCode.MANIFEST_INVALID, reason="CHECKSUM_MISMATCH"))] * 3
    with pytest.raises(EbbtideError) as caught:
        members.run()
    assert caught.value.details["reason"] == "CHECKSUM_MISMATCH"
    assert members.methods()[-1] == "DELETE"


def test_a_refusal_is_not_repeated() -> None:
    members = Members()
    members.answers = [(lambda send: send.method == "POST", error(ErrorCode.HOST_MEMORY_INSUFFICIENT, needMiB=1))]
    with pytest.raises(EbbtideError) as caught:
        members.run()
    assert caught.value.code is ErrorCode.HOST_MEMORY_INSUFFICIENT
    assert members.methods() == ["POST", "DELETE"]


def test_members_that_lost_all_get_all_again() -> None:
    members = Members()

    def lost() -> Answer:
        members.files.clear()
        return error(ErrorCode.MEMBERSHIP_CHANGED)

    members.answers = [(lambda send: MANIFEST in send.path, lost)]
    members.run()
    assert members.methods() == ["POST", "PUT", "PUT", "POST", "PUT", "PUT", "POST"]
    assert set(members.files) == {FILE, MANIFEST}


def test_members_that_lose_it_every_time_are_given_up() -> None:
    members = Members()
    members.answers = [(put, error(ErrorCode.MEMBERSHIP_CHANGED))] * 3
    with pytest.raises(EbbtideError) as caught:
        members.run()
    assert caught.value.code is ErrorCode.MEMBERSHIP_CHANGED


def test_an_upload_goes_on_where_it_was() -> None:
    members = Members()
    members.run()
    whole = members.files[FILE]
    again = Members()
    again.files = {FILE: whole}
    again.run()
    assert [send.path.partition("?")[0].rpartition("/")[2] for send in again.sent if send.method == "PUT"] == [MANIFEST]
    assert again.files[FILE] == whole


def test_a_version_that_has_its_name_is_compared_and_not_taken_back() -> None:
    members = Members()
    members.published = True
    members.answers = [(lambda send: send.path.endswith("publish"), error(ErrorCode.VERSION_REGRESSION))]
    with pytest.raises(EbbtideError):
        members.run()
    assert members.methods() == ["POST", "POST"]


def test_blocks_gather_small_views_and_cut_large_ones() -> None:
    views = [memoryview(bytes([n]) * size) for n, size in enumerate((3, 0, 1, 9, 5))]
    cut = list(blocks(iter(views), 4))
    assert [len(block) for block in cut] == [4, 4, 4, 4, 2]
    assert b"".join(cut) == b"".join(bytes(view) for view in views)
    assert list(blocks(iter([]), 4)) == []


def test_ctrl_c_takes_it_back() -> None:
    members = Members()

    def interrupted() -> Answer:
        raise KeyboardInterrupt

    gateway = Gateway("http://gateway", clock=lambda: 0.0)
    flow = Uploading(gateway, LEASE, 7, pieces_of(TENSORS), members.advanced.append, lambda: 0.0).run()
    first = next(flow)
    assert isinstance(first, Send)
    flow.send(members._answer(first))
    last = flow.throw(KeyboardInterrupt())
    assert isinstance(last, Send)
    assert last.method == "DELETE"
    with pytest.raises(KeyboardInterrupt):
        flow.send(Reply(200, {}))
