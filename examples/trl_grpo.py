"""TRL's GRPOTrainer, unmodified, with an engine outside of it whose memory Ebbtide lends.

    pip install trl                                                     # beside ebbtide[cpu] or ebbtide[cuda]
    python -m ebbtide.tinymodel examples/local/models/tiny
    ebbtide up -f examples/local/server.yaml                            # one terminal
    python examples/trl_grpo.py --model examples/local/models/tiny      # another

TRL asks `rollout_func` for completions before it trains on them. There the memory goes back to the engine with the
weights of the last step, the engine samples, and the memory is borrowed again: for the backward pass and the optimizer.
The reward of a completion is the share of its tokens that begin a word.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from itertools import groupby
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import torch
from ebbtide import Group, Loan
from torch_grpo import PROMPTS, WORD_START, Completion, Engine, Sampler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func may still change


class Rollouts:
    """TRL's `rollout_func`, and the loan that lasts from one call of it to the next. Use it as a context manager."""

    def __init__(self, group: Group, sample: Sampler, tokens: int) -> None:
        self.group, self.sample, self.tokens = group, sample, tokens
        self.version = max(server.weight_version for server in group.servers())
        self.freed_mib: list[float] = []
        self.served: list[int] = []
        self._loan: Loan | None = None
        self._trainer: Any = None

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, list[Any]]:
        """Return a completion for every prompt, sampled from the weights that the trainer has now."""
        self._trainer = trainer
        self.give_back()
        drawn = self._draw(prompts)
        self._borrow()
        return {
            "prompt_ids": [one.prompt for one in drawn],
            "completion_ids": [one.tokens for one in drawn],
            "logprobs": [one.logprobs for one in drawn],
        }

    def _draw(self, prompts: Sequence[str]) -> list[Completion]:
        drawn: list[Completion] = []
        # The same prompt comes as often as it has siblings: asked for together, they are different.
        for prompt, same in groupby(prompts):
            (group,) = self.sample([prompt], len(list(same)), self.tokens, self.version)
            drawn.extend(group)
        return drawn

    def _borrow(self) -> None:
        loan = self.group.borrow()
        loan.__enter__()
        self._loan = loan
        self.freed_mib.append(loan.freed_mib)

    def give_back(self) -> None:
        """End the loan, if there is one: the trainer's weights serve from here on, on every replica or on none."""
        loan, self._loan = self._loan, None
        if loan is None:
            return
        with _leaving(loan):
            model = self._trainer.accelerator.unwrap_model(self._trainer.model)
            loan.publish(model.state_dict(), version=self.version + 1, dtype=torch.bfloat16)
        self.version += 1
        self.served.append(loan.reclaimed.weight_version if loan.reclaimed else 0)

    def __enter__(self) -> Rollouts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        loan = self._loan
        if problem is None:
            self.give_back()
        elif loan is not None:
            # Half a step is no policy: the old weights serve on.
            loan.__exit__(kind, problem, trace)


class _leaving:  # noqa: N801 - reads as a word
    """Leave a loan that was entered elsewhere as its own with block would."""

    def __init__(self, loan: Loan) -> None:
        self._loan = loan

    def __enter__(self) -> None:
        return None

    def __exit__(self, *how: Any) -> None:
        self._loan.__exit__(*how)


class _Tell(TrainerCallback):
    """Prints a line of JSON for each step."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "reward" in logs:
            freed = self._rollouts.freed_mib[-1]
            told = {"step": state.global_step, "reward": logs["reward"], "freed_mib": freed, **self._version()}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()

    def _version(self) -> dict[str, int]:
        return {"sampled_from_version": self._rollouts.version}


def reward_of(tokenizer: Any) -> Any:
    """Return TRL's reward function: the share of tokens that begin a word."""
    vocabulary = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))

    def begins_a_word(completion_ids: list[list[int]], **_: Any) -> list[float]:
        starts = [[vocabulary[token].startswith(WORD_START) for token in ids] for ids in completion_ids]
        return [sum(each) / max(1, len(each)) for each in starts]

    return begins_a_word


def trainer_of(path: str, rollouts: Rollouts, steps: int, folder: str, siblings: int = 8) -> Any:
    """Return TRL's trainer of a model, on the CPU where there is no GPU. It writes nothing into `folder` but itself."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        per_device_train_batch_size=siblings * len(PROMPTS),
        num_generations=siblings,
        max_completion_length=rollouts.tokens,
        beta=0.0,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=0,
    )
    tokenizer = AutoTokenizer.from_pretrained(path)
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        reward_funcs=reward_of(tokenizer),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=tokenizer,
        rollout_func=rollouts,
        callbacks=[_Tell(rollouts)],
    )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", default="actor")
    parser.add_argument("--model", required=True, help="the folder of the model that the engine serves")
    parser.add_argument("--steps", type=int, default=6)
    asked = parser.parse_args()
    with Group(asked.group) as group, TemporaryDirectory() as folder:
        engine = Engine(group.servers()[0].url)
        with Rollouts(group, engine.sample, tokens=24) as rollouts:
            trainer_of(asked.model, rollouts, asked.steps, folder).train()
        sys.stdout.write(json.dumps({"served_versions": rollouts.served}) + "\n")


if __name__ == "__main__":
    main()
