"""What an agent does with streamed bytes, on a folder of its own."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.manifest import MANIFEST
from ebbtide_api.upload import PublishRequest, Upload, UploadFile, UploadRequest
from ebbtide_runtime.agent import receive
from ebbtide_runtime.agent.receive import Receiver
from ebbtide_runtime.native import crc32c

from tests.support.checkpoints import SHAPES, describe, safetensors

pytestmark = pytest.mark.anyio
FILE = "model-00001.safetensors"
EPOCH = 3


@pytest.fixture
def receiver(tmp_path: Path, anyio_backend: str) -> Iterator[Receiver]:
    made = Receiver(tmp_path / "handoff", idle_s=60)
    yield made
    made.close()


def content(version: int) -> tuple[bytes, bytes]:
    """Return a file and its manifest."""
    data, entries = safetensors(SHAPES, seed=version)
    return data, json.dumps(describe(data, entries, FILE, version)).encode()


async def opened(
    receiver: Receiver, version: int, size: int, *, room: int = 1 << 30, epoch: int = EPOCH, keep: int = 0
) -> Upload:
    async def there() -> int:
        return room

    asked = UploadRequest(files=[UploadFile(name=FILE, length=size)], keep=keep)
    return await receiver.open(version, asked, epoch, there)


async def sent(receiver: Receiver, version: int, data: bytes, file: str = FILE, offset: int = 0) -> Upload:
    return await receiver.write(version, file, offset, data, crc32c(data))


async def published(receiver: Receiver, version: int, epoch: int = EPOCH, keep: int = 0) -> Upload:
    data, manifest = content(version)
    await opened(receiver, version, len(data), epoch=epoch, keep=keep)
    await sent(receiver, version, data)
    await sent(receiver, version, manifest, MANIFEST)
    return await receiver.publish(version, PublishRequest(length=len(manifest), crc32c=crc32c(manifest)))


def names(receiver: Receiver, tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "handoff").iterdir())


async def refusal(work: object) -> EbbtideError:
    with pytest.raises(EbbtideError) as caught:
        await work  # type: ignore[misc]
    return caught.value


async def test_a_version_appears_whole(receiver: Receiver, tmp_path: Path) -> None:
    data, manifest = content(1)
    assert (await opened(receiver, 1, len(data))).received == {}
    assert (await sent(receiver, 1, data[:100])).received == {FILE: 100}
    assert names(receiver, tmp_path) == [".v1.part"]
    assert (await sent(receiver, 1, data[100:], offset=100)).received == {FILE: len(data)}
    await sent(receiver, 1, manifest, MANIFEST)
    done = await receiver.publish(1, PublishRequest(length=len(manifest), crc32c=crc32c(manifest)))
    assert done.published
    assert names(receiver, tmp_path) == ["v1"]
    assert (tmp_path / "handoff/v1" / FILE).read_bytes() == data
    assert (tmp_path / "handoff/v1" / FILE).stat().st_mode & 0o777 == 0o600


async def test_every_call_may_be_repeated(receiver: Receiver, tmp_path: Path) -> None:
    data, manifest = content(1)
    await opened(receiver, 1, len(data))
    await sent(receiver, 1, data[:100])
    assert (await opened(receiver, 1, len(data))).received == {FILE: 100}
    assert (await sent(receiver, 1, data[:100])).received == {FILE: 100}
    assert (await sent(receiver, 1, data[50:], offset=50)).received == {FILE: len(data)}
    await sent(receiver, 1, manifest, MANIFEST)
    asked = PublishRequest(length=len(manifest), crc32c=crc32c(manifest))
    first = await receiver.publish(1, asked)
    assert await receiver.publish(1, asked) == first == await opened(receiver, 1, len(data))
    assert await sent(receiver, 1, b"late") == first
    assert (tmp_path / "handoff/v1" / FILE).read_bytes() == data


async def test_another_content_of_a_published_version_is_refused(receiver: Receiver) -> None:
    await published(receiver, 1)
    error = await refusal(receiver.publish(1, PublishRequest(length=5, crc32c=1)))
    assert error.code is ErrorCode.VERSION_REGRESSION


async def test_other_sizes_begin_anew(receiver: Receiver) -> None:
    await opened(receiver, 1, 100)
    await sent(receiver, 1, bytes(60))
    assert (await opened(receiver, 1, 90)).received == {}


async def test_no_room_takes_nothing(receiver: Receiver, tmp_path: Path) -> None:
    error = await refusal(opened(receiver, 1, 3 << 20, room=1 << 20))
    assert (error.status, error.details) == (507, {"needMiB": 3.0, "availableMiB": 1.0})
    assert not (tmp_path / "handoff").exists()


async def test_room_is_made_of_what_nobody_asks_for_any_more(receiver: Receiver, tmp_path: Path) -> None:
    await published(receiver, 1, epoch=1)
    await published(receiver, 2, epoch=2, keep=1)
    assert names(receiver, tmp_path) == ["v1", "v2"]
    await opened(receiver, 3, 100, keep=1)
    assert names(receiver, tmp_path) == [".v3.part", "v1"]


async def test_a_lease_keeps_its_earlier_version_while_there_is_room(receiver: Receiver, tmp_path: Path) -> None:
    await published(receiver, 1)
    held = sum(path.stat().st_size for path in (tmp_path / "handoff/v1").iterdir())
    error = await refusal(opened(receiver, 2, held + 101, room=100))
    assert error.code is ErrorCode.HOST_MEMORY_INSUFFICIENT
    assert names(receiver, tmp_path) == ["v1"]
    await opened(receiver, 2, 100, room=100)
    assert names(receiver, tmp_path) == [".v2.part", "v1"]
    await opened(receiver, 2, held + 99, room=100)
    assert names(receiver, tmp_path) == [".v2.part"]


async def test_a_copy_that_is_the_members_own_too_frees_nothing(receiver: Receiver, tmp_path: Path) -> None:
    await published(receiver, 1)
    os.link(tmp_path / "handoff/v1" / FILE, tmp_path / "own")
    size = (tmp_path / "own").stat().st_size
    error = await refusal(opened(receiver, 2, size, room=0))
    assert error.code is ErrorCode.HOST_MEMORY_INSUFFICIENT


async def test_a_full_file_system_gives_all_of_it_back(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    await opened(receiver, 1, 100)
    await sent(receiver, 1, bytes(40))
    monkeypatch.setattr(receive, "_write", full)
    error = await refusal(sent(receiver, 1, bytes(60), offset=40))
    assert error.code is ErrorCode.HOST_MEMORY_INSUFFICIENT
    assert names(receiver, tmp_path) == []


async def test_a_write_that_fails_otherwise_says_so(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    await opened(receiver, 1, 100)
    monkeypatch.setattr(receive, "_write", broken)
    error = await refusal(sent(receiver, 1, bytes(40)))
    assert (error.code, "input/output error" in error.message) == (ErrorCode.INTERNAL, True)


@pytest.mark.parametrize(
    ("file", "offset", "data", "reason"),
    [
        (FILE, 0, bytes(101), "TORN"),
        (FILE, 0, bytes(100), ""),
        ("other", 0, b"x", "UNREADABLE"),
        (MANIFEST, 0, b"{}", ""),
    ],
)
async def test_what_was_not_announced_is_refused(
    receiver: Receiver, file: str, offset: int, data: bytes, reason: str
) -> None:
    await opened(receiver, 1, 100)
    try:
        await sent(receiver, 1, data, file, offset)
        found = ""
    except EbbtideError as error:
        found = str(error.details["reason"])
    assert found == reason


async def test_a_gap_says_where_to_go_on(receiver: Receiver) -> None:
    await opened(receiver, 1, 100)
    error = await refusal(sent(receiver, 1, bytes(10), offset=20))
    assert (error.code, error.retryable, error.details["received"]) == (ErrorCode.MEMBERSHIP_CHANGED, True, 0)


async def test_damaged_bytes_take_nothing(receiver: Receiver) -> None:
    await opened(receiver, 1, 100)
    error = await refusal(receiver.write(1, FILE, 0, bytes(10), 77))
    assert error.details["reason"] == "CHECKSUM_MISMATCH"
    assert (await opened(receiver, 1, 100)).received == {}


def other_version(manifest: dict[str, object]) -> None:
    manifest["version"] = 9


def other_size(manifest: dict[str, object]) -> None:
    manifest["files"][0]["length"] += 1  # type: ignore[index]


def no_tensors(manifest: dict[str, object]) -> None:
    manifest["tensors"] = []


@pytest.mark.parametrize(
    ("spoil", "reason"), [(other_version, "VERSION_MISMATCH"), (other_size, "TORN"), (no_tensors, "UNREADABLE")]
)
async def test_a_manifest_that_does_not_fit_gets_no_name(
    receiver: Receiver, tmp_path: Path, spoil: object, reason: str
) -> None:
    data, text = content(1)
    manifest = json.loads(text)
    spoil(manifest)  # type: ignore[operator]
    text = json.dumps(manifest).encode()
    await opened(receiver, 1, len(data))
    await sent(receiver, 1, data)
    await sent(receiver, 1, text, MANIFEST)
    error = await refusal(receiver.publish(1, PublishRequest(length=len(text), crc32c=crc32c(text))))
    assert error.details["reason"] == reason
    assert names(receiver, tmp_path) == [".v1.part"]


async def test_a_restarted_agent_knows_nothing_of_a_part_and_keeps_what_has_a_name(
    receiver: Receiver, tmp_path: Path
) -> None:
    await published(receiver, 1)
    await opened(receiver, 2, 100, keep=1)
    again = Receiver(tmp_path / "handoff", idle_s=60)
    again.clean()
    assert names(again, tmp_path) == ["v1"]
    error = await refusal(sent(again, 2, bytes(10)))
    assert error.code is ErrorCode.MEMBERSHIP_CHANGED
    again.close()


async def test_versions_are_forgotten(receiver: Receiver, tmp_path: Path) -> None:
    for version in (1, 2, 3):
        await published(receiver, version)
    await opened(receiver, 4, 10)
    await receiver.drop(2)
    assert names(receiver, tmp_path) == [".v4.part", "v1", "v3"]
    await receiver.drop(4)
    assert names(receiver, tmp_path) == ["v1", "v3"]
    await receiver.drop(3, through=True)
    assert names(receiver, tmp_path) == []


async def test_dropping_through_a_version_leaves_a_newer_part(receiver: Receiver, tmp_path: Path) -> None:
    await opened(receiver, 4, 10)
    await receiver.drop(3, through=True)
    assert names(receiver, tmp_path) == [".v4.part"]
    await receiver.drop(5, through=True)
    assert names(receiver, tmp_path) == []
