"""The example's training and the demo's judgement, without an engine."""

import importlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from ebbtide import Connection, Group
from ebbtide.tinymodel import make
from rich.console import Console

from tests.support.examples import EXAMPLES, example
from tests.support.fake_gateway import FakeGateway


@pytest.fixture(scope="module")
def grpo() -> Iterator[ModuleType]:
    with example("torch_grpo") as found:
        yield found


@pytest.fixture(scope="module")
def demo(grpo: ModuleType) -> ModuleType:
    return importlib.import_module("demo")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("models") / "tiny", layers=1)


class Standin:
    """Samples from the policy itself, as an engine with its weights would."""

    def __init__(self, grpo: ModuleType, policy) -> None:  # type: ignore[no-untyped-def]
        self.grpo, self.policy = grpo, policy

    def __call__(self, prompts: Sequence[str], n: int, max_tokens: int, seed: int):  # type: ignore[no-untyped-def]
        generator = torch.Generator().manual_seed(seed)
        return [self._group([7, index + 20, 300], n, max_tokens, generator) for index in range(len(prompts))]

    @torch.no_grad()
    def _group(self, prompt: list[int], n: int, max_tokens: int, generator: torch.Generator):  # type: ignore[no-untyped-def]
        tokens, logprobs = torch.tensor([prompt] * n), []
        for _ in range(max_tokens):
            likely = self.policy.model(tokens).logits[:, -1].log_softmax(-1)
            drawn = torch.multinomial(likely.exp(), 1, generator=generator)
            logprobs.append(likely.gather(1, drawn))
            tokens = torch.cat([tokens, drawn], 1)
        answers, known = tokens[:, len(prompt) :].tolist(), torch.cat(logprobs, 1).tolist()
        return [self.grpo.Completion(prompt, *pair) for pair in zip(answers, known, strict=True)]


@pytest.fixture
def policy(grpo: ModuleType, model: Path):  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    return grpo.Policy(str(model), grpo.Settings(samples=8, tokens=8, epochs=2, learning_rate=4e-3))


def test_training_through_loans_raises_the_reward(
    grpo: ModuleType, policy, connection: Connection, gateway: FakeGateway
) -> None:  # type: ignore[no-untyped-def]
    gateway.version = 40
    with Group("actor", connection=connection) as group:
        training = grpo.Training(group, policy, Standin(grpo, policy))
        training.begin()
        steps = list(training.steps(4))
    assert [step.weight_version for step in steps] == [41, 42, 43, 44]
    assert steps[-1].reward > training.first_reward + 0.05
    assert all(step.canary and step.freed_mib == 1200.5 for step in steps)
    assert all(step.disagreement < 1e-3 for step in steps)
    assert [name for name, _ in steps[0].phases] == ["Draining", "Suspending", "WakingWeights", "Verifying"]
    assert gateway.performed == ["lend", "reclaim"] * 4


def test_the_reward_is_the_share_of_wanted_tokens(grpo: ModuleType, policy) -> None:  # type: ignore[no-untyped-def]
    wanted = policy.wanted.nonzero().flatten().tolist()
    other = (~policy.wanted).nonzero().flatten().tolist()
    assert 50 < len(wanted) < 256
    assert policy.reward(grpo.Completion([1], [*wanted[:3], other[0]], [0.0] * 4)) == 0.75
    assert policy.reward(grpo.Completion([1], [], [])) == 0


def test_other_weights_disagree(grpo: ModuleType, policy) -> None:  # type: ignore[no-untyped-def]
    samples = Standin(grpo, policy)(("a", "b"), 4, 6, 0)
    assert policy.disagreement(samples) < 1e-4
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.5)
    assert policy.disagreement(samples) > 0.1


def test_only_sampled_tokens_count(grpo: ModuleType, policy) -> None:  # type: ignore[no-untyped-def]
    short = grpo.Completion([5, 6], [7], [-1.0])
    long = grpo.Completion([5], [8, 9, 10], [-1.0, -2.0, -3.0])
    batch = policy._batch([[short, long]])
    assert batch.tokens.tolist() == [[5, 6, 7, 0], [5, 8, 9, 10]]
    assert batch.sampled.tolist() == [[False, True, False], [True, True, True]]
    assert batch.before[1].tolist() == [-1.0, -2.0, -3.0]


# The demo


def steps_of(grpo: ModuleType, count: int = 2):  # type: ignore[no-untyped-def]
    made = []
    for number in range(1, count + 1):
        made.append(
            grpo.Step(
                step=number,
                reward=0.2 + number / 10,
                loss=0.0,
                freed_mib=1000.04,
                lend_ms=50.123,
                train_ms=900.0,
                reclaim_ms=70.0,
                weight_version=number,
                canary=True,
                disagreement=0.01,
                phases=[("Draining", 1.0)],
            )
        )
    return made


def servers_of(connection: Connection, gateway: FakeGateway, version: int):  # type: ignore[no-untyped-def]
    with Group("actor", connection=connection) as group:
        gateway.version = 0
        before = group.servers()[0]
        gateway.version = version
        after = group.servers()[0]
    member = before.members[0].model_copy(update={"weights_mib": 5.0, "kv_mib": 1000.0})
    return replace(before, members=(member,)), after


@pytest.fixture
def judged(demo: ModuleType, grpo: ModuleType, connection: Connection, gateway: FakeGateway):  # type: ignore[no-untyped-def]
    def judge(**changes: object):  # type: ignore[no-untyped-def]
        steps = steps_of(grpo)
        steps[-1] = replace(steps[-1], **changes)
        run = demo.Run(steps=steps, first_reward=0.2, closed=["503 ENGINE_ASLEEP, Retry-After 1"] * 2)
        demo.judge(run, *servers_of(connection, gateway, 2))
        return run

    return judge


def test_a_good_run_passes(judged) -> None:  # type: ignore[no-untyped-def]
    run = judged()
    assert [check.name for check in run.checks if not check.ok] == []
    assert run.ok


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"reward": 0.2}, "the reward rose"),
        ({"canary": False}, "every canary was answered"),
        ({"freed_mib": 12.0}, "memory was measured free at every step"),
        ({"weight_version": 1}, "every step served its own version"),
        ({"disagreement": 0.4}, "the engine serves what was trained"),
    ],
)
def test_each_fault_fails_its_check(judged, changes: dict[str, object], fails: str) -> None:  # type: ignore[no-untyped-def]
    run = judged(**changes)
    assert [check.name for check in run.checks if not check.ok] == [fails]
    assert not run.ok


def test_what_is_written_is_what_was_asked_for(judged, demo: ModuleType) -> None:  # type: ignore[no-untyped-def]
    wire = json.loads(json.dumps(judged().wire()))
    assert wire["ok"] is True
    assert wire["steps"][0] == {
        "step": 1,
        "freedMiB": 1000.0,
        "lendMs": 50.1,
        "reclaimMs": 70.0,
        "weightVersion": 1,
        "canary": True,
        "reward": 0.3,
    }
    assert set(wire["checks"][0]) == {"name", "ok", "detail"}
    assert demo.Run().wire() == {"ok": False, "steps": [], "checks": []}


def test_the_tables_fit_a_narrow_terminal(demo: ModuleType, grpo: ModuleType) -> None:
    steps = [replace(step, phases=[(name, 12345.6) for name in demo.PHASES]) for step in steps_of(grpo, 6)]
    run, screen = demo.Run(steps=steps), Console(width=80, file=io.StringIO())
    screen.print(demo.results(run))
    screen.print(demo.phase_times(run))
    shown = screen.file.getvalue().splitlines()
    assert len(shown) == (1 + 7) + (1 + 6), "no row is wrapped"
    assert not any("\u2026" in line for line in shown)
    assert shown[-1].split() == ["step", "6", *["12,346"] * len(demo.PHASES)]


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--engine", "tpu"], ["--fast"]])
def test_the_demo_refuses_wrong_arguments(
    demo: ModuleType, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", *arguments])
    with pytest.raises(SystemExit) as caught:
        demo.arguments()
    assert caught.value.code == 2
    assert "scripts/demo" in capsys.readouterr().err


def test_the_demo_ends_without_a_word_while_it_imports(tmp_path: Path) -> None:
    # Its torch is one during whose import Ctrl-C is pressed.
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('went on')\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, EXAMPLES / "demo.py"], env=env, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_the_demo_uses_the_example_unless_its_port_is_taken(
    grpo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    server = importlib.import_module("demo_server")
    local = server.Local("cpu")
    local.home = tmp_path / "home"
    monkeypatch.setattr(server, "_is_free", lambda port: True)
    assert local._spec() == EXAMPLES / "local/server.yaml"
    monkeypatch.setattr(server, "_is_free", lambda port: False)
    variant = yaml.safe_load(local._spec().read_text())
    assert variant["spec"]["engine"]["port"] > 1024
    assert variant["spec"]["model"]["source"] == str(EXAMPLES / "local/models/tiny")


def test_the_demo_knows_gpus(grpo: ModuleType, tmp_path: Path) -> None:
    from ebbtide_api.load import load_file

    local = importlib.import_module("demo_server").Local("cuda")
    local.home = tmp_path / "home"
    (server,) = load_file(local._spec())
    assert server.spec.colocation.devices.env == "CUDA_VISIBLE_DEVICES"
    assert "--gpu-memory-utilization=0.5" in server.spec.engine.extra_args
