"""The main job from end to end, checked: `scripts/demo` sets up and runs this.

It makes a tiny model, starts `ebbtide up` in a home of its own, trains with torch_grpo on the memory that the engine
lends, prints what was measured, and ends with the checks it made. Exit codes: 0 all passed, 1 not, 130 interrupted.
"""

from __future__ import annotations

import signal

# Torch takes seconds to import. Until there is something to end, Ctrl-C ends this at once, without a traceback.
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import torch
from demo_server import ROOT, Local
from ebbtide import EbbtideError, Group, Loan, Progress, Server
from ebbtide.cli.console import complain
from ebbtide.tinymodel import make
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from torch_grpo import Engine, Policy, Settings, Step, Training

MODEL = ROOT / "examples/local/models/tiny"
PROBE = "ebb and flow"
console = Console(highlight=False)
PHASES = {
    "Draining": "drain",
    "Suspending": "sleep, settle",
    "WakingWeights": "weights",
    "WeightsResident": "check",
    "Updating": "load",
    "Committed": "commit",
    "WakingKV": "KV",
    "Verifying": "canary",
}


@dataclass(frozen=True)
class Check:
    """Something that must be true, whether it is, and the numbers."""

    name: str
    ok: bool
    detail: str


@dataclass
class Run:
    """What the run saw."""

    steps: list[Step] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    first_reward: float = 0.0
    first_version: int = 0
    closed: list[str] = field(default_factory=list)

    def check(self, name: str, ok: bool, detail: str) -> None:
        """Note a check."""
        self.checks.append(Check(name, ok, detail))

    @property
    def ok(self) -> bool:
        """Whether there were steps, and every check passed."""
        return bool(self.steps) and bool(self.checks) and all(check.ok for check in self.checks)

    def wire(self) -> dict[str, object]:
        """Return the run as `--json` writes it."""
        return {
            "ok": self.ok,
            "steps": [
                {
                    "step": step.step,
                    "freedMiB": round(step.freed_mib, 1),
                    "lendMs": round(step.lend_ms, 1),
                    "reclaimMs": round(step.reclaim_ms, 1),
                    "weightVersion": step.weight_version,
                    "canary": step.canary,
                    "reward": round(step.reward, 4),
                }
                for step in self.steps
            ],
            "checks": [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in self.checks],
        }


def main() -> int:
    """Run the demo and return the exit code."""
    asked = arguments()
    run, local = Run(), Local(asked.engine)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        make(MODEL)
        local.start()
        perform(run, local, asked.steps)
        if asked.keep:
            console.print(f"It runs on: EBBTIDE_HOME={local.home} ebbtide status; `ebbtide down` ends it.")
        else:
            stop(run, local)
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted: ending the engine.[/]")
        return 130
    except EbbtideError as error:
        complain(error)
        run.check("the run ended without an error", False, f"{error.code}: {error.message}")
    finally:
        if not asked.keep:
            local.stop()
        if asked.json:
            asked.json.write_text(json.dumps(run.wire(), indent=1) + "\n")
    conclude(run)
    return 0 if run.ok else 1


def arguments() -> argparse.Namespace:
    """Return what was typed."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Set up, and show Ebbtide's main job, checked.")
    parser.add_argument("--steps", type=int, default=6, help="training steps (6)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write steps and checks there")
    parser.add_argument("--engine", choices=("cpu", "cuda"), default="cpu", help="which vLLM to use (cpu)")
    parser.add_argument("--keep", action="store_true", help="leave the engine running at the end")
    asked = parser.parse_args()
    if asked.steps < 1:
        parser.error("--steps must be at least 1")
    return asked


# The run


def perform(run: Run, local: Local, count: int) -> None:
    """Train for `count` steps against the engine, and check what can be checked while it runs."""
    torch.manual_seed(0)
    with Group("actor", connection=local.connection(), holder="demo") as group:
        (server,) = group.servers()
        engine, policy = Engine(server.url), Policy(str(MODEL), Settings())
        before = engine.greedy(PROBE, 8)
        train(run, group, Training(group, policy, engine.sample), server, count)
        after = engine.greedy(PROBE, 8)
        run.check("the tokens changed with the weights", before != after, f"{before} -> {after}")
        judge(run, server, group.servers()[0])


def train(run: Run, group: Group, training: Training, server: Server, count: int) -> None:
    """Take the steps, with a bar that says what is going on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("sampling", total=count)

        def progress(report: Progress) -> None:
            bar.update(task, description=f"{report.stage}: {report.text}"[:60])

        def lent(loan: Loan) -> None:
            run.closed.append(knock(server.url))
            bar.update(task, description=f"training in {loan.freed_mib:,.0f} MiB")

        training.on_progress, training.on_loan = progress, lent
        training.begin()
        run.first_reward, run.first_version = training.first_reward, training.first_version
        for step in training.steps(count):
            run.steps.append(step)
            bar.update(task, advance=1, description="sampling")
    console.print(results(run))
    console.print()
    console.print(phase_times(run))


def knock(url: str) -> str:
    """Send a request to the sleeping engine, and return how it was refused."""
    answer = httpx2.post(f"{url}/v1/completions", json={"prompt": PROBE}, timeout=10, trust_env=False, verify=False)
    try:
        code = str(answer.json()["code"])
    except (ValueError, KeyError, TypeError):
        code = "no code"
    return f"{answer.status_code} {code}, Retry-After {answer.headers.get('Retry-After', 'absent')}"


def stop(run: Run, local: Local) -> None:
    """End everything, and check that nothing is left."""
    memory = local.memory()
    local.stop()
    left = local.processes()
    run.check("no process is left", not left, f"{len(left)} processes" if left else "engine, agent, launcher ended")
    there = memory is not None and memory.exists()
    run.check("no memory is left", not there, f"{memory} is {'still there' if there else 'gone'}")


# The judgement


def judge(run: Run, before: Server, after: Server) -> None:
    """Check what the steps measured."""
    steps, count = run.steps, len(run.steps)
    versions = [step.weight_version for step in steps]
    expected = [run.first_version + number for number in range(1, count + 1)]
    run.check("every step served its own version", versions == expected, f"{versions}")
    run.check(
        "the last version serves",
        after.serving and after.weight_version == expected[-1],
        f"version {after.weight_version}, {'serving' if after.serving else 'not serving'}",
    )
    held = sum(member.weights_mib + member.kv_mib for member in before.members)
    freed = min(step.freed_mib for step in steps)
    told = f"at least {freed:,.0f} MiB; weights and KV held {held:,.0f}"
    run.check("memory was measured free at every step", freed >= 0.9 * held > 0, told)
    rise = steps[-1].reward - run.first_reward
    run.check("the reward rose", rise > 0.02, f"{run.first_reward:.3f} -> {steps[-1].reward:.3f}")
    answered = sum(step.canary for step in steps)
    run.check("every canary was answered", answered == count, f"{answered} of {count}")
    worst = max(step.disagreement for step in steps)
    run.check("the engine serves what was trained", worst < 0.1, f"log-probabilities differ by {worst:.4f} at most")
    refused = all(how.startswith("503 ENGINE_ASLEEP") and "absent" not in how for how in run.closed)
    run.check("requests while lent were refused, not lost", refused and len(run.closed) == count, run.closed[-1])
    same = [member.instance for member in before.members] == [member.instance for member in after.members]
    run.check("it was one engine all along", same, f"pid {after.members[0].instance.pid}")


def results(run: Run) -> Table:
    """Return what the steps measured, as a table. Its width is that of a narrow terminal."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("Step", "Freed MiB", "Lend ms", "Train ms", "Give back ms", "Version", "Canary", "Reward"):
        made.add_column(column, justify="right")
    made.add_row("0", "", "", "", "", str(run.first_version), "", f"{run.first_reward:.3f}")
    for step in run.steps:
        times = [f"{value:,.0f}" for value in (step.freed_mib, step.lend_ms, step.train_ms, step.reclaim_ms)]
        canary = "[green]ok[/]" if step.canary else "[red]failed[/]"
        made.add_row(str(step.step), *times, str(step.weight_version), canary, f"{step.reward:.3f}")
    return made


def phase_times(run: Run) -> Table:
    """Return how long each step's phases took, as a table."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("ms of", *PHASES.values()):
        made.add_column(column, justify="right")
    for step in run.steps:
        took = dict(step.phases)
        made.add_row(f"step {step.step}", *(f"{took[phase]:,.0f}" if phase in took else "" for phase in PHASES))
    return made


def conclude(run: Run) -> None:
    """Print the checks."""
    for check in run.checks:
        mark = "[green]ok    [/]" if check.ok else "[bold red]FAILED[/]"
        console.print(f"{mark} {check.name}: {check.detail}", soft_wrap=True)
    if run.ok:
        console.print(f"[bold green]{len(run.checks)} checks passed.[/]")
    else:
        console.print("[bold red]The demo failed.[/]")


if __name__ == "__main__":
    sys.exit(main())
