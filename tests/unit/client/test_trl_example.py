"""The example with TRL: its real GRPOTrainer, a pretended gateway, and samples from the policy itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ebbtide import Connection, EbbtideError, ErrorCode, Group
from ebbtide.tinymodel import make
from ebbtide_api.errors import ErrorBody

from tests.support import examples
from tests.support.fake_gateway import FakeGateway

# TRL and what it brings warn of themselves.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with examples.example("trl_grpo") as found:
            yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("models") / "tiny", layers=1))


class Standin:
    """Samples from the trainer's own model, as an engine with its weights would, and notes who owned the memory."""

    def __init__(self, example: ModuleType, gateway: FakeGateway) -> None:
        self.example, self.gateway = example, gateway
        self.trainer: Any = None
        self.owners: list[str] = []

    def __call__(self, prompts: Sequence[str], n: int, max_tokens: int, seed: int) -> Any:
        import torch

        self.owners.append(self.gateway.owner)
        ids = self.trainer.processing_class(prompts[0])["input_ids"]
        tokens, logprobs = torch.tensor([ids] * n), []
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(max_tokens):
                likely = self.trainer.model(tokens).logits[:, -1].log_softmax(-1)
                drawn = torch.multinomial(likely.exp(), 1, generator=generator)
                logprobs.append(likely.gather(1, drawn))
                tokens = torch.cat([tokens, drawn], 1)
        answers, known = tokens[:, len(ids) :].tolist(), torch.cat(logprobs, 1).tolist()
        return [[self.example.Completion(ids, *pair) for pair in zip(answers, known, strict=True)]]


@dataclass
class Run:
    """A training that is to begin."""

    example: ModuleType
    model: str
    folder: str
    sample: Standin
    group: Group
    rollouts: Any = None

    def train(self, steps: int = 3, siblings: int = 2, callback: Any = None) -> Any:
        with self.example.Rollouts(self.group, self.sample, tokens=4) as self.rollouts:
            trainer = self.example.trainer_of(self.model, self.rollouts, steps, self.folder, siblings)
            self.sample.trainer = trainer
            if callback is not None:
                trainer.add_callback(callback)
            return trainer.train()


@pytest.fixture
def run(example: ModuleType, model: str, tmp_path: Path, connection: Connection, gateway: FakeGateway) -> Iterator[Run]:
    with Group("actor", connection=connection) as group:
        yield Run(example, model, str(tmp_path / "out"), Standin(example, gateway), group)


def test_every_step_is_sampled_from_the_engine_and_trained_on_lent_memory(run: Run, gateway: FakeGateway) -> None:
    gateway.version = 40
    result = run.train(siblings=4)
    assert result.global_step == 3
    assert run.rollouts.served == [41, 42, 43]
    assert run.rollouts.freed_mib == [1200.5] * 3
    assert gateway.performed == ["lend", "reclaim"] * 3
    assert set(run.sample.owners) == {"engine"}, "nobody samples from an engine that sleeps"
    assert len(run.sample.owners) == 3 * len(run.example.PROMPTS), "siblings are asked for together"
    rewards = [log["reward"] for log in run.sample.trainer.state.log_history if "reward" in log]
    assert len(rewards) == 3


def test_a_step_that_fails_brings_the_old_weights_back(run: Run, gateway: FakeGateway) -> None:
    from transformers import TrainerCallback

    class Breaks(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            assert gateway.owner != "engine", "it is trained on lent memory"
            raise ZeroDivisionError

    gateway.version = 7
    with pytest.raises(ZeroDivisionError):
        run.train(callback=Breaks())
    assert (gateway.version, gateway.owner, gateway.current) == (7, "engine", None)


def test_weights_that_are_refused_end_the_training(run: Run, gateway: FakeGateway) -> None:
    gateway.fail("reclaim", ErrorBody(code=ErrorCode.CANARY_FAILED, message="other tokens"))
    with pytest.raises(EbbtideError, match="other tokens"):
        run.train()
    assert (run.rollouts.served, run.rollouts.version) == ([], 0)
    assert gateway.current is None


def test_the_reward_is_the_share_of_tokens_that_begin_a_word(example: ModuleType, model: str) -> None:
    tokenizer = example.AutoTokenizer.from_pretrained(model)
    starts = tokenizer(" the quick")["input_ids"]
    reward = example.reward_of(tokenizer)
    words = [token.startswith(example.WORD_START) for token in tokenizer.convert_ids_to_tokens(starts)]
    assert reward([starts, []]) == [sum(words) / len(words), 0.0]
