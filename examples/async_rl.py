"""Asynchronous reinforcement learning: engines sample all the time, and every token knows which weights drew it.

    ebbtide up -f examples/local/server.yaml                            # one terminal
    ebbtide proxy actor                                                 # another
    python examples/async_rl.py --model examples/local/models/tiny      # a third

Samplers and trainer use the proxy alone, by vLLM's and SGLang's own paths. While the optimizer steps, requests are
frozen (`/pause?mode=keep`) and go on afterwards with what they had. New weights end them with the tokens that they have
(`/update_weights_from_disk`, `abort_all_requests`); their samplers ask on from there, so a completion may be of several
versions. Each of its tokens is trained with the probability that its own version gave it, and what is too old is
dropped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import httpx2
import torch
from safetensors.torch import save_file
from torch_grpo import PROMPTS, Completion, Policy, Settings
from transformers import AutoTokenizer


@dataclass
class Drawn:
    """A completion as it grows. `versions` has the weights' version of every token."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def oldest(self) -> int:
        """The oldest version that drew a token of it."""
        return min(self.versions, default=0)

    def add(self, choice: dict[str, Any]) -> None:
        """Add what one request has drawn."""
        content = (choice.get("logprobs") or {}).get("content") or []
        self.tokens += [each["token_id"] for each in content]
        self.logprobs += [each["logprob"] for each in content]
        for span in choice.get("weight_versions") or []:
            self.versions += [_number(span["version"])] * (span["end"] - span["start"])
        if len(self.versions) != len(self.tokens):
            raise RuntimeError(f"{len(self.tokens)} tokens, and versions for {len(self.versions)} of them")


def _number(version: str) -> int:
    # Before the first update an engine calls its weights "default".
    return int(version) if version.isdecimal() else 0


class Proxy:
    """The group, as a client of its proxy. Every call answers when its effect was measured on every engine."""

    def __init__(self, url: str) -> None:
        self.client = httpx2.Client(base_url=url, timeout=600, trust_env=False)

    def call(self, path: str, **body: Any) -> dict[str, Any]:
        """Call a verb. Raises what it answers instead of 200."""
        answer = self.client.post(path, json=body)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
        return dict(answer.json())

    @contextmanager
    def frozen(self) -> Iterator[dict[str, Any]]:
        """Freeze all requests inside the block; they go on after it."""
        paused = self.call("/pause?mode=keep")
        try:
            yield paused["ebbtide"]
        finally:
            self.call("/resume")

    def update(self, folder: Path, version: int) -> int:
        """Load weights into every engine, and return our number of them. Requests end with the tokens they have."""
        body = {"model_path": str(folder), "weight_version": str(version), "abort_all_requests": True}
        answer = self.call("/update_weights_from_disk", **body)
        return max(member["committedVersion"] for member in answer["ebbtide"]["members"].values())

    def draw(self, prompt: list[int], want: int) -> Drawn:
        """Draw one completion, over as many requests and versions as it takes."""
        drawn = Drawn(prompt)
        while (left := want - len(drawn.tokens)) > 0:
            sampling = {"temperature": 1.0, "max_tokens": left, "logprobs": 0, "ignore_eos": True}
            body = {"token_ids": prompt + drawn.tokens, "sampling_params": sampling}
            answer = self.client.post("/inference/v1/generate", json=body)
            if answer.status_code == 503:
                time.sleep(float(answer.headers.get("Retry-After", "1")))
                continue
            answer.raise_for_status()
            drawn.add(answer.json()["choices"][0])
        return drawn


class Samplers:
    """Threads that draw siblings of one prompt after another until they are told to stop."""

    def __init__(self, proxy: Proxy, prompts: list[list[int]], settings: Settings, count: int = 4) -> None:
        self.ready: queue.Queue[list[Drawn]] = queue.Queue(maxsize=2 * len(prompts))
        self._proxy, self._settings = proxy, settings
        self._prompts, self._lock = itertools.cycle(prompts), threading.Lock()
        self._ended = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]

    def _work(self) -> None:
        try:
            while not self._ended.is_set():
                with self._lock:
                    prompt = next(self._prompts)
                group = [self._proxy.draw(prompt, self._settings.tokens) for _ in range(self._settings.samples)]
                self._offer(group)
        except BaseException as problem:
            self._failed.append(problem)

    def _offer(self, group: list[Drawn]) -> None:
        while not self._ended.is_set():
            with suppress(queue.Full):
                self.ready.put(group, timeout=0.1)
                break

    def take(self, count: int, oldest: int) -> tuple[list[list[Drawn]], int]:
        """Return groups of completions without a token older than a version, and how many were dropped as too old."""
        taken: list[list[Drawn]] = []
        dropped = 0
        while len(taken) < count:
            if self._failed:
                raise self._failed[0]
            try:
                group = self.ready.get(timeout=0.5)
            except queue.Empty:
                continue
            fresh = min(drawn.oldest for drawn in group) >= oldest
            taken += [group] if fresh else []
            dropped += not fresh
        return taken, dropped

    def __enter__(self) -> Samplers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)


@dataclass(frozen=True)
class Step:
    """What one step did. `versions` are those that drew its tokens, with how many each drew."""

    step: int
    reward: float
    loss: float
    dropped: int
    frozen: int
    version: int
    versions: dict[int, int]


def train(proxy: Proxy, policy: Policy, samplers: Samplers, steps: int, lag: int, batch: int) -> Iterator[Step]:
    """Train on what was sampled by weights at most `lag` versions old."""
    version = _number(proxy.client.get("/get_weight_version").json()["weight_version"])
    for number in range(1, steps + 1):
        groups, dropped = samplers.take(batch, version - lag)
        drawn = [[Completion(one.prompt, one.tokens, one.logprobs) for one in group] for group in groups]
        with proxy.frozen() as paused:
            frozen = sum(member["inflight"] for member in paused["members"].values())
            loss = policy.train(drawn)
        with TemporaryDirectory() as folder:
            tensors = {name: each.to(torch.bfloat16).contiguous() for name, each in policy.model.state_dict().items()}
            save_file(tensors, Path(folder, "model.safetensors"), {"format": "pt"})
            version = proxy.update(Path(folder), version + 1)
        seen = [each for group in groups for one in group for each in one.versions]
        counts = {each: seen.count(each) for each in sorted(set(seen))}
        yield Step(number, policy.mean_reward(drawn), loss, dropped, frozen, version, counts)


def main() -> None:
    """Train, and print a line of JSON for each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proxy", default="http://127.0.0.1:7410")
    parser.add_argument("--model", required=True, help="the folder of the model that the engine serves")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lag", type=int, default=2, help="how many versions old a token may be")
    asked = parser.parse_args()
    proxy, settings = Proxy(asked.proxy), Settings(samples=8)
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    with Samplers(proxy, prompts, settings) as samplers:
        for step in train(proxy, Policy(asked.model, settings), samplers, asked.steps, asked.lag, batch=4):
            sys.stdout.write(json.dumps(vars(step)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
