"""What is remembered of a group over time: changes only, bounded, and with a beginning for who does not move."""

from __future__ import annotations

from dataclasses import replace

from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage
from ebbtide_operator.history import History
from ebbtide_operator.plan import Explanation, GroupRecord, LeaseRecord, MemberView, Obstacle
from ebbtide_operator.telling import BY_ITSELF, told

from tests.support.fake_member import FakeMember

RECORD = GroupRecord(group="actor")
LEASE = LeaseRecord(id="l", holder="trainer", stage=LeaseStage.LENT, epoch=2, ttl_seconds=30)
LENT = GroupRecord(group="actor", epoch=2, owner="trainer", lease=LEASE)


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}.000Z"


def member(phase: Phase, name: str = "chat-0") -> MemberView:
    return MemberView(name, "chat", 0, state=FakeMember(name=name, phase=phase).vector())


def phases(history: History, name: str = "chat-0") -> list[str]:
    return [one.phase for one in history.timeline("actor", at(59)).members if one.member == name]


def test_what_is_as_it_was_is_no_entry() -> None:
    history = History()
    for second in range(5):
        history.observe(RECORD, [member(Phase.RUNNING)], at(second))
    found = history.timeline("actor", at(9))
    assert [(one.at, one.owner, one.epoch, one.stage) for one in found.ownership] == [(at(0), "engine", 1, None)]
    assert [(one.at, one.member, one.phase) for one in found.members] == [(at(0), "chat-0", "Running")]
    assert (found.group, found.now) == ("actor", at(9))


def test_owners_and_phases_are_told_in_order() -> None:
    history = History()
    history.observe(RECORD, [member(Phase.RUNNING)], at(0))
    history.observe(LENT, [member(Phase.ASLEEP)], at(1))
    history.observe(LENT, [replace(member(Phase.ASLEEP), state=None)], at(2))
    history.observe(RECORD.model_copy(update={"epoch": 3}), [], at(3))
    found = history.timeline("actor", at(9))
    assert [(one.owner, one.epoch, one.stage, one.holder) for one in found.ownership] == [
        ("engine", 1, None, ""),
        ("trainer", 2, LeaseStage.LENT, "trainer"),
        ("engine", 3, None, ""),
    ]
    assert phases(history) == ["Running", "Asleep", "NoAnswer", "Gone"]


def test_the_ring_is_bounded_and_who_did_not_move_keeps_a_beginning() -> None:
    history = History(length=6)
    history.observe(RECORD, [member(Phase.RUNNING), member(Phase.ASLEEP, "chat-1")], at(0))
    for second in range(1, 30):
        phase = Phase.RUNNING if second % 2 else Phase.PAUSED
        history.observe(RECORD, [member(phase), member(Phase.ASLEEP, "chat-1")], at(second))
    found = history.timeline("actor", at(59))
    assert len(found.members) == 6 + 2
    assert phases(history, "chat-1") == ["Asleep"]
    assert [one.owner for one in found.ownership] == ["engine"]
    times = [one.at for one in found.members if one.member == "chat-0"]
    assert times == sorted(times)


def test_members_that_are_no_more_are_forgotten_in_the_end() -> None:
    history = History(length=8)
    for number in range(100):
        history.observe(RECORD, [member(Phase.RUNNING, f"chat-{number}")], at(number % 60))
    found = history.timeline("actor", at(59))
    assert len({one.member for one in found.members}) <= 8
    assert len(history._last) <= 10


def explained(*obstacles: Obstacle, wants: str = "To serve.") -> Explanation:
    return Explanation(settled=not obstacles, wants=wants, obstacles=obstacles)


def test_an_obstacle_keeps_the_time_at_which_it_was_first_seen() -> None:
    first = told(None, "chat", explained(Obstacle("cpu0", "WaitsForMemory", "700 MiB are held.", "Free it.")), at(1))
    again = Obstacle("cpu0", "WaitsForMemory", "650 MiB are held.", "Free it.")
    later = told(first, "chat", explained(again, Obstacle("chat-0", "Restarting", "It restarts.")), at(2))
    assert [(one.since, one.message, one.next_action) for one in later.obstacles] == [
        (at(1), "650 MiB are held.", "Free it."),
        (at(2), "It restarts.", BY_ITSELF),
    ]
    assert later.since == at(1)
    settled = told(later, "chat", explained(wants="Serves."), at(3))
    assert (settled.settled, settled.since, settled.obstacles) == (True, at(3), [])
    assert told(settled, "chat", explained(again), at(4)).obstacles[0].since == at(4)
