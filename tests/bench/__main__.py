"""`scripts/bench NAME [--json FILE]`: run one benchmark and print what it measured."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from rich.console import Console

from .report import Report

NAMES = ("lend", "operator", "stream")


def main() -> int:
    """Run the named benchmark. Exits 0 even when a goal is missed: a figure is reported, not judged."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", type=Path, help="also write the report here")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it runs")
    arguments = parser.parse_args()
    report: Report = importlib.import_module(f"tests.bench.{arguments.name}").run(quick=arguments.quick)
    report.show(Console())
    if arguments.json:
        report.write(arguments.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
