"""How much memory a control group leaves, told from folders that look like one."""

from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest
from ebbtide_runtime.agent import cgroup
from ebbtide_runtime.agent.steps import common

MIB = 1 << 20
PID = 7


class Group(NamedTuple):
    """A control group's files, in MiB; no limit is `max`."""

    limit: int | None
    used: int
    clean: int = 0

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        half = self.clean * MIB // 2
        stat = f"anon 12345\nfile {half * 3}\nshmem {half}\ninactive_file {half}\nactive_file {half}\n"
        (folder / "memory.max").write_text("max\n" if self.limit is None else f"{self.limit * MIB}\n")
        (folder / "memory.current").write_text(f"{self.used * MIB}\n")
        (folder / "memory.stat").write_text(stat)


def process(proc: Path, path: str, groups: dict[str, Group]) -> None:
    """Make a process in /proc: its group's path, and the groups as it sees them."""
    root = proc / str(PID) / "root/sys/fs/cgroup"
    root.mkdir(parents=True)
    (proc / str(PID) / "cgroup").write_text(f"1:name=systemd:/old\n0::{path}\n")
    for name, group in groups.items():
        group.write(root / name.strip("/"))


@pytest.mark.parametrize(
    ("path", "groups", "room"),
    [
        ("/", {"/": Group(1000, 300)}, 700),
        ("/", {"/": Group(None, 300)}, None),
        ("/", {}, None),
        # What was read from disk makes way; a group at its limit because of that has room.
        ("/", {"/": Group(1000, 1000, clean=600)}, 600),
        ("/", {"/": Group(1000, 1100)}, 0),
        ("/", {"/": Group(0, 0)}, 0),
        # On a machine without containers the limit may be on any level.
        ("/user/us", {"/user": Group(500, 100), "/user/us": Group(None, 50)}, 400),
        ("/user/us", {"/user": Group(500, 100), "/user/us": Group(300, 50)}, 250),
        ("/user/us", {"/user/them": Group(1, 1)}, None),
        # Another container's process: its group's path leads out of ours, but its own root tells.
        ("/../engine", {"/": Group(1000, 300), "../engine": Group(1, 1)}, 700),
    ],
)
def test_room(tmp_path: Path, path: str, groups: dict[str, Group], room: int | None) -> None:
    process(tmp_path, path, groups)
    assert cgroup.room(PID, tmp_path) == (None if room is None else room * MIB)


def test_what_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    assert cgroup.room(PID, tmp_path) is None
    process(tmp_path, "/", {"/": Group(1000, 300)})
    (tmp_path / str(PID) / "root/sys/fs/cgroup/memory.current").write_text("?")
    assert cgroup.room(PID, tmp_path) is None
    (tmp_path / str(PID) / "root/sys/fs/cgroup/memory.current").unlink()
    assert cgroup.room(PID, tmp_path) is None


def test_a_group_without_statistics_has_used_all_that_it_was_charged(tmp_path: Path) -> None:
    process(tmp_path, "/", {"/": Group(1000, 300, clean=200)})
    (tmp_path / str(PID) / "root/sys/fs/cgroup/memory.stat").unlink()
    assert cgroup.room(PID, tmp_path) == 700 * MIB


@pytest.mark.parametrize(("left", "there"), [(None, 1000), (5000, 1000), (900, 868), (10, 0)])
def test_the_smaller_of_node_and_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int | None, there: int
) -> None:
    asked: list[int] = []

    def room(pid: int) -> int | None:
        asked.append(pid)
        return None if left is None else left * MIB

    monkeypatch.setattr(common.cgroup, "room", room)
    monkeypatch.setattr(common.psutil, "virtual_memory", lambda: Mock(available=1256 * MIB))
    monkeypatch.setattr(common.os, "statvfs", lambda _folder: Mock(f_bavail=1 << 20, f_frsize=1 << 20))
    assert common.available(tmp_path, PID) == there * MIB
    assert asked == [PID]


def test_each_copy_is_charged_to_who_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "available", lambda _folder, writer: {PID: 300, common.os.getpid(): 200}[writer])
    member = Mock()
    member.config.host_memory_limit, member.config.memory, member.identity.pid = 1000, "/memory", PID
    assert (common.room(member, 100), common.parking_room(member, 100)) == (200, 300)
    assert common.parking_room(member, 900) == 100
