"""The control page: what one process sees, and which files are refused."""

import os
import stat
import time
from pathlib import Path

import pytest
from ebbtide_runtime.native import Field, Measurement, NativeError, Page, Status


def refused(path: Path) -> Status:
    with pytest.raises(NativeError) as caught:
        Page.open(path)
    assert str(path) in caught.value.message
    return caught.value.status


def test_a_new_page_is_all_zero_and_closed(page: Page) -> None:
    assert [page.get(field) for field in Field] == [0] * len(Field)
    assert not page.admission
    assert page.inflight() == 0
    assert page.measurement() is None


def test_a_new_page_is_private(page: Page, shm: Path) -> None:
    assert stat.S_IMODE((shm / "page").stat().st_mode) == 0o600


def test_every_field_keeps_its_own_value(page: Page) -> None:
    writable = [field for field in Field if field is not Field.ADMISSION]
    for field in writable:
        page.set(field, 1000 + field)
    assert [page.get(field) for field in writable] == [1000 + field for field in writable]


def test_words_are_64_bits_wide(page: Page) -> None:
    page.set(Field.EPOCH, 2**64 - 1)
    assert page.get(Field.EPOCH) == 2**64 - 1
    assert page.add(Field.EPOCH, 3) == 2


def test_add_returns_the_new_value(page: Page) -> None:
    assert page.add(Field.BOOT, 1) == 1
    assert page.add(Field.BOOT, 2) == 3


def test_admission_changes_by_the_gate_only(page: Page) -> None:
    for change in (lambda: page.set(Field.ADMISSION, 1), lambda: page.add(Field.ADMISSION, 1)):
        with pytest.raises(NativeError) as caught:
            change()
        assert caught.value.status is Status.INVALID_ARGUMENT
    assert not page.admission


def test_a_request_that_leaves_says_when(page: Page) -> None:
    gate = page.register_gate()
    page.open_gate()
    assert gate.enter()
    assert page.get(Field.LAST_REQUEST) == 0
    before = time.monotonic_ns()
    gate.leave()
    assert before <= page.get(Field.LAST_REQUEST) <= time.monotonic_ns()


def test_two_openers_see_one_page(page: Page, shm: Path) -> None:
    other = Page.open(shm / "page")
    page.set(Field.WEIGHT_VERSION, 7)
    page.open_gate()
    assert other.get(Field.WEIGHT_VERSION) == 7
    assert other.admission
    other.close()


def test_a_page_outlives_its_openers(shm: Path) -> None:
    page = Page.create(shm / "page")
    page.set(Field.EPOCH, 5)
    page.close()
    again = Page.open(shm / "page")
    assert again.get(Field.EPOCH) == 5
    again.close()


def test_create_never_overwrites(page: Page, shm: Path) -> None:
    page.set(Field.EPOCH, 5)
    with pytest.raises(NativeError) as caught:
        Page.create(shm / "page")
    assert caught.value.status is Status.EXISTS
    assert page.get(Field.EPOCH) == 5
    assert os.listdir(shm) == ["page"]


def test_a_missing_folder_is_named(shm: Path) -> None:
    with pytest.raises(NativeError) as caught:
        Page.create(shm / "none" / "page")
    assert caught.value.status is Status.NOT_FOUND
    assert "none/page" in caught.value.message


def test_a_missing_page_is_not_found(shm: Path) -> None:
    assert refused(shm / "page") is Status.NOT_FOUND


@pytest.mark.parametrize("content", [b"", b"EBB", b"#!/bin/sh\n", b"\0" * 65536])
def test_a_foreign_file_is_refused(shm: Path, content: bytes) -> None:
    (shm / "page").write_bytes(content)
    assert refused(shm / "page") is Status.FOREIGN


def test_a_folder_a_link_and_a_pipe_are_refused(shm: Path) -> None:
    (shm / "folder").mkdir()
    Page.create(shm / "page").close()
    (shm / "link").symlink_to(shm / "page")
    os.mkfifo(shm / "pipe")
    assert refused(shm / "link") is Status.FOREIGN
    assert refused(shm / "pipe") is Status.FOREIGN
    assert refused(shm / "folder") in {Status.FOREIGN, Status.IO}


def test_another_abi_is_refused(shm: Path) -> None:
    Page.create(shm / "page").close()
    raw = bytearray((shm / "page").read_bytes())
    raw[8] += 1
    (shm / "page").write_bytes(raw)
    assert refused(shm / "page") is Status.WRONG_ABI


def test_another_size_of_layout_is_refused(shm: Path) -> None:
    Page.create(shm / "page").close()
    raw = bytearray((shm / "page").read_bytes())
    raw[13] ^= 1
    (shm / "page").write_bytes(raw)
    assert refused(shm / "page") is Status.WRONG_ABI


@pytest.mark.parametrize("change", [-1, -64, 1])
def test_a_short_or_long_page_is_refused(shm: Path, change: int) -> None:
    Page.create(shm / "page").close()
    os.truncate(shm / "page", (shm / "page").stat().st_size + change)
    assert refused(shm / "page") is Status.TRUNCATED


def test_measurements_replace_each_other(page: Page) -> None:
    for number in range(1, 6):
        page.publish(Measurement(number, 2, 3, 4, 5))
        assert page.measurement() == Measurement(number, 2, 3, 4, 5)


def test_a_closed_page_raises(shm: Path) -> None:
    page = Page.create(shm / "page")
    page.close()
    page.close()
    with pytest.raises(NativeError) as caught:
        page.get(Field.EPOCH)
    assert caught.value.status is Status.INVALID_STATE
