"""What a benchmark says: rows, goals, a table for people and a JSON file for machines.

Contenders are interleaved in one run and compared within it, since machines differ and are noisy.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One contender's metric over `n` samples."""

    workload: str
    contender: str
    metric: str
    unit: str
    median: float
    p90: float
    n: int


@dataclass(frozen=True)
class Goal:
    """A figure that was promised, and whether it was met. `goal` reads like `<= 50 ms`."""

    name: str
    value: float
    goal: str
    met: bool


def row(workload: str, contender: str, metric: str, unit: str, samples: Sequence[float]) -> Row:
    """Summarize samples by their median and 90th percentile (nearest rank)."""
    ordered = sorted(samples)
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return Row(workload, contender, metric, unit, statistics.median(ordered), p90, len(ordered))


def at_most(name: str, value: float, limit: float, unit: str = "") -> Goal:
    """A goal that `value` is at most `limit`."""
    return Goal(name, value, f"<= {limit:g} {unit}".strip(), value <= limit)


def at_least(name: str, value: float, limit: float, unit: str = "") -> Goal:
    """A goal that `value` is at least `limit`."""
    return Goal(name, value, f">= {limit:g} {unit}".strip(), value >= limit)


def machine() -> dict[str, Any]:
    """Describe this machine as far as figures depend on it."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memoryGiB": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


@dataclass
class Report:
    """Collects rows and goals, prints them, and writes them."""

    title: str
    rows: list[Row] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)

    def add(self, rows: Iterable[Row] = (), goals: Iterable[Goal] = ()) -> None:
        """Take in what a workload measured."""
        self.rows.extend(rows)
        self.goals.extend(goals)

    def median(self, workload: str, contender: str, metric: str) -> float:
        """Return one row's median."""
        key = (workload, contender, metric)
        return next(row.median for row in self.rows if (row.workload, row.contender, row.metric) == key)

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        content = {
            "machine": machine(),
            "rows": [asdict(each) for each in self.rows],
            "goals": [asdict(each) for each in self.goals],
        }
        path.write_text(json.dumps(content, indent=2) + "\n")

    def show(self, console: Console) -> None:
        """Print the rows, then the goals."""
        console.print(rows_table(self.title, self.rows))
        console.print(goals_table(self.goals))


def rows_table(title: str, rows: Iterable[Row]) -> Table:
    """Render rows."""
    table = Table(title=title)
    for column in ("workload", "contender", "metric", "median", "p90", "n"):
        table.add_column(column, justify="right" if column in {"median", "p90", "n"} else "left")
    for each in rows:
        median, p90 = f"{each.median:.4g} {each.unit}", f"{each.p90:.4g} {each.unit}"
        table.add_row(each.workload, each.contender, each.metric, median, p90, str(each.n))
    return table


def goals_table(goals: Iterable[Goal]) -> Table:
    """Render goals, the missed ones too."""
    table = Table(title="goals")
    for column in ("goal", "wanted", "measured", "met"):
        table.add_column(column)
    for each in goals:
        table.add_row(each.name, each.goal, f"{each.value:.4g}", "yes" if each.met else "[bold red]no[/]")
    return table
