"""Tables of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ebbtide_api.state import PhaseTiming, StateVector
from ebbtide_api.verbs import GroupState, LendResult, ReclaimResult, ServerState
from rich.console import Group as Rows
from rich.table import Table
from rich.text import Text

from .console import mib, ms, yes

_STYLES = {"Running": "green", "Asleep": "blue", "Faulted": "bold red", "Recovering": "red", "Unknown": "red"}


def table(*columns: str, title: str | None = None, right: Iterable[str] = ()) -> Table:
    """Return an empty table; the columns in `right` hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", header_style="dim")
    return made


def overview(groups: Sequence[GroupState], servers: Sequence[ServerState]) -> Rows:
    """Return everything there is: members, then groups with their devices."""
    return Rows(members(servers), Text(), owners(groups))


def members(servers: Sequence[ServerState]) -> Table:
    """Return every member: phase, weights, memory, and what is wrong."""
    made = table("Member", "Phase", "Serving", "Version", "Memory", "Parked", "In flight", "For", "", right=_NUMBERS)
    for server in servers:
        for member in server.members:
            made.add_row(*_member(server, member))
        if not server.members:
            made.add_row(server.name, Text("-"), yes(False), "", "", "", "", "", _note(server, None))
    return made


_NUMBERS = ("Version", "Memory", "Parked", "In flight", "For")


def _member(server: ServerState, member: StateVector) -> Iterable[str | Text]:
    used = sum(device.used_mib for device in member.devices)
    yield member.name
    yield Text(member.phase, style=_STYLES.get(member.phase, "yellow"))
    yield yes(member.admission)
    yield str(member.weight_version)
    yield mib(used) if member.devices else ""
    yield mib(member.parked_mib) if member.parked_mib else ""
    yield str(member.inflight.running + member.inflight.waiting)
    yield age(member.since)
    yield _note(server, member)


def _note(server: ServerState, member: StateVector | None) -> Text:
    if member is not None and member.last_error is not None and not member.admission:
        return Text(f"{member.last_error.code}: {member.last_error.message}", style="red")
    return Text("" if server.ready and server.serving else server.message, style="dim")


def owners(groups: Sequence[GroupState]) -> Table:
    """Return who owns each group's devices, and who waits for them."""
    made = table("Group", "Owner", "Epoch", "Lease", "Waiting", "Device", right=("Epoch", "Waiting"))
    for group in groups:
        lease = f"{group.lease.holder}: {group.lease.stage}" if group.lease else ""
        made.add_row(group.name, group.owner, str(group.epoch), lease, str(len(group.queue)), _devices(group.devices))
    return made


def _devices(devices: Sequence[dict[str, object]]) -> str:
    return "; ".join(
        f"{device.get('id')}: {device.get('usedMiB')} of {device.get('budgetMiB', '?')} MiB used" for device in devices
    )


def lent(result: LendResult) -> Rows:
    """Return what a lend measured."""
    made = table("Device", "Freed", "Left of the engines", "Free", right=("Freed", "Left of the engines", "Free"))
    for device in result.devices:
        made.add_row(device.id, mib(device.freed_mib), mib(device.residual_mib), _free(device.free_mib))
    levels = ", ".join(f"{member.member} at level {member.result.level}" for member in result.members)
    aborted = f"; {result.aborted_requests} requests were aborted" if result.aborted_requests else ""
    return Rows(made, Text(f"{levels}{aborted}", style="dim"), Text(timings(result.phases), style="dim"))


def _free(known: float | None) -> str:
    return "not known" if known is None else mib(known)


def returned(result: ReclaimResult) -> Text:
    """Return how the engines came back, in a line."""
    canaries = [member.result.canary for member in result.members]
    well = all(canary is None or canary.ok for canary in canaries)
    return Text(
        f"Serving version {result.weight_version} again; canary {'ok' if well else 'failed'}; {timings(result.phases)}",
        style="green" if well else "red",
    )


def timings(phases: Sequence[PhaseTiming]) -> str:
    """Return phases and their times in a line."""
    return " > ".join(f"{timing.phase} {ms(timing.ms)}" for timing in phases)


def age(since: str) -> str:
    """Return how long ago an ISO time was."""
    try:
        then = datetime.fromisoformat(since)
    except ValueError:
        return ""
    seconds = int((datetime.now(UTC) - then.astimezone(UTC)).total_seconds())
    if seconds < 120:
        return f"{max(0, seconds)} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
