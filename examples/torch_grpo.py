"""Reinforcement learning in plain torch, on memory that Ebbtide lends: GRPO without a framework.

    python -m ebbtide.tinymodel examples/local/models/tiny
    ebbtide up -f examples/local/server.yaml                            # one terminal
    python examples/torch_grpo.py --model examples/local/models/tiny    # another

Every step borrows the engine's memory, trains on what the engine sampled, publishes the new weights, gives the memory
back, and samples again. The reward of a completion is the share of its tokens that begin a word.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Protocol

import httpx2
import torch
from ebbtide import Group, Loan, Progress
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

PROMPTS = (
    "every wave returns with",
    "the quick brown fox",
    "a ship waits for high water",
    "engines sleep while trainers",
    "measure twice, promise",
    "cache blocks travel from",
    "memory ebbs and",
    "the morning tide",
)
WORD_START = "\u0120"  # how byte-level BPE writes a leading space


@dataclass(frozen=True)
class Settings:
    """What is sampled, and how it is trained."""

    samples: int = 16
    tokens: int = 24
    epochs: int = 4
    learning_rate: float = 2e-3
    clip: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """One sampled answer as token ids, with the log-probabilities that its sampler gave them."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


class Sampler(Protocol):
    """Draws `n` completions at temperature 1 for each prompt."""

    def __call__(self, prompts: Sequence[str], n: int, max_tokens: int, seed: int) -> list[list[Completion]]: ...


class Engine:
    """A running engine, over its OpenAI API. `return_token_ids` spares us from tokenizing its text again."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.Client(base_url=url, timeout=120, trust_env=False, verify=url.startswith("https"))
        self._model = self._client.get("/v1/models").json()["data"][0]["id"]

    def sample(self, prompts: Sequence[str], n: int, max_tokens: int, seed: int) -> list[list[Completion]]:
        """Draw completions at temperature 1."""
        drawn = self._complete(prompt=list(prompts), n=n, max_tokens=max_tokens, temperature=1.0, seed=seed, logprobs=0)
        flat = [
            Completion(one["prompt_token_ids"], one["token_ids"], one["logprobs"]["token_logprobs"]) for one in drawn
        ]
        return [flat[start : start + n] for start in range(0, len(flat), n)]

    def greedy(self, prompt: str, max_tokens: int) -> list[int]:
        """Return the most likely tokens."""
        (one,) = self._complete(prompt=prompt, max_tokens=max_tokens, temperature=0)
        return list(one["token_ids"])

    def _complete(self, **body: Any) -> list[dict[str, Any]]:
        answer = self._post({"model": self._model, "return_token_ids": True, **body})
        return sorted(answer["choices"], key=lambda choice: choice["index"])

    def _post(self, body: dict[str, Any], patience: float = 60) -> Any:
        """While the engine sleeps or starts it answers 503 and says when to ask again: do as told."""
        deadline = time.monotonic() + patience
        while True:
            answer = self._client.post("/v1/completions", json=body)
            if answer.status_code != 503 or time.monotonic() > deadline:
                answer.raise_for_status()
                return answer.json()
            time.sleep(float(answer.headers.get("Retry-After", "1")))


@dataclass(frozen=True)
class Batch:
    """Padded token ids; for each predicted one whether it was sampled and how likely it was; an advantage a row."""

    tokens: Tensor
    sampled: Tensor
    before: Tensor
    advantages: Tensor


class Policy:
    """The model that is trained: 32-bit master weights here, bfloat16 in the engine."""

    def __init__(self, path: str, settings: Settings) -> None:
        disable_progress_bar()
        tokenizer = AutoTokenizer.from_pretrained(path)
        vocabulary = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.settings = settings
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.wanted = torch.tensor([token.startswith(WORD_START) for token in vocabulary])
        self.text: Callable[[list[int]], str] = tokenizer.decode

    def reward(self, completion: Completion) -> float:
        """Return the share of tokens that begin a word."""
        return float(self.wanted[completion.tokens].float().mean()) if completion.tokens else 0.0

    def mean_reward(self, groups: list[list[Completion]]) -> float:
        """Return the mean reward of all completions."""
        rewards = [self.reward(completion) for group in groups for completion in group]
        return sum(rewards) / len(rewards)

    def train(self, groups: list[list[Completion]]) -> float:
        """Take a few clipped policy-gradient steps on one batch, and return the last loss."""
        batch = self._batch(groups)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.settings.learning_rate)
        loss = torch.zeros(())
        for _ in range(self.settings.epochs):
            optimizer.zero_grad()
            loss = self._loss(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def disagreement(self, groups: list[list[Completion]]) -> float:
        """Return the mean distance of our log-probabilities from the sampler's: small if it serves our weights."""
        batch = self._batch(groups)
        with torch.no_grad():
            return float((self._logprobs(batch) - batch.before).abs()[batch.sampled].mean())

    def _batch(self, groups: list[list[Completion]]) -> Batch:
        rewards = torch.tensor([[self.reward(completion) for completion in group] for group in groups])
        # A completion is good or bad only beside its siblings, so no value model is needed.
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        drawn = [completion for group in groups for completion in group]
        width = max(len(completion.prompt) + len(completion.tokens) for completion in drawn)
        tokens = torch.zeros(len(drawn), width, dtype=torch.long)
        before, sampled = torch.zeros(len(drawn), width), torch.zeros(len(drawn), width, dtype=torch.bool)
        for row, completion in enumerate(drawn):
            start, end = len(completion.prompt), len(completion.prompt) + len(completion.tokens)
            tokens[row, :end] = torch.tensor(completion.prompt + completion.tokens)
            before[row, start:end] = torch.tensor(completion.logprobs)
            sampled[row, start:end] = True
        return Batch(tokens, sampled[:, 1:], before[:, 1:], advantages.flatten())

    def _logprobs(self, batch: Batch) -> Tensor:
        # Padding is on the right and attention looks left: no mask is needed.
        logits = self.model(batch.tokens).logits[:, :-1]
        return -cross_entropy(logits.transpose(1, 2), batch.tokens[:, 1:], reduction="none")

    def _loss(self, batch: Batch) -> Tensor:
        ratio = (self._logprobs(batch) - batch.before).exp()
        advantage = batch.advantages[:, None]
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip) * advantage)
        return -(gain * batch.sampled).sum() / batch.sampled.sum()


@dataclass(frozen=True)
class Step:
    """What one step did and measured. `reward` is that of the weights which it published; times are milliseconds."""

    step: int
    reward: float
    loss: float
    freed_mib: float
    lend_ms: float
    train_ms: float
    reclaim_ms: float
    weight_version: int
    canary: bool
    disagreement: float
    phases: list[tuple[str, float]]


class Training:
    """The loop. Version numbers go on from the one that serves. The callbacks say how it stands."""

    def __init__(self, group: Group, policy: Policy, sample: Sampler) -> None:
        self.group, self.policy, self.sample = group, policy, sample
        self.on_progress: Callable[[Progress], None] = lambda report: None
        self.on_loan: Callable[[Loan], None] = lambda loan: None
        self.samples: list[list[Completion]] = []
        self.first_version = 0
        self.first_reward = 0.0

    def begin(self) -> None:
        """Sample from the weights that serve."""
        self.first_version = max(server.weight_version for server in self.group.servers())
        self.samples = self._draw(0)
        self.first_reward = self.policy.mean_reward(self.samples)

    def _draw(self, step: int) -> list[list[Completion]]:
        settings = self.policy.settings
        return self.sample(PROMPTS, settings.samples, settings.tokens, settings.seed + step)

    def steps(self, count: int) -> Iterator[Step]:
        """Take `count` steps."""
        for step in range(1, count + 1):
            yield self._step(step)

    def _step(self, step: int) -> Step:
        times = [time.monotonic()]
        with self.group.borrow(on_progress=self.on_progress) as loan:
            times.append(time.monotonic())
            self.on_loan(loan)
            loss = self.policy.train(self.samples)
            # The optimizer is gone: what it held must be free before the engine takes its memory back.
            gc.collect()
            loan.publish(self.policy.model.state_dict(), version=self.first_version + step, dtype=torch.bfloat16)
            times.append(time.monotonic())
        times.append(time.monotonic())
        self.samples = self._draw(step)
        lend_ms, train_ms, reclaim_ms = ((end - start) * 1000 for start, end in pairwise(times))
        return self._report(step, loan, loss, lend_ms, train_ms, reclaim_ms)

    def _report(self, step: int, loan: Loan, loss: float, lend_ms: float, train_ms: float, reclaim_ms: float) -> Step:
        back = loan.reclaimed
        if back is None:
            raise RuntimeError("the memory was not given back")
        canaries = [member.result.canary for member in back.members]
        return Step(
            step=step,
            reward=self.policy.mean_reward(self.samples),
            loss=loss,
            freed_mib=loan.freed_mib,
            lend_ms=lend_ms,
            train_ms=train_ms,
            reclaim_ms=reclaim_ms,
            weight_version=back.weight_version,
            canary=all(canary is not None and canary.ok for canary in canaries),
            disagreement=self.policy.disagreement(self.samples),
            phases=[(str(each.phase), each.ms) for each in (*loan.lend.phases, *back.phases)],
        )


def main() -> None:
    """Train, and print a line of JSON for each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", default="actor")
    parser.add_argument("--model", required=True, help="the folder of the model that the engine serves")
    parser.add_argument("--steps", type=int, default=6)
    asked = parser.parse_args()
    with Group(asked.group) as group:
        engine = Engine(group.servers()[0].url)
        policy = Policy(asked.model, Settings())
        training = Training(group, policy, engine.sample)
        training.begin()
        sys.stdout.write(json.dumps({"step": 0, "reward": training.first_reward}) + "\n")
        for step in training.steps(asked.steps):
            sys.stdout.write(json.dumps(asdict(step)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
