"""Clients of a model, over plain HTTP to the engine's data port: greedy tokens, streams, and a steady poller."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from tests.support.launching import until

PROMPT = "ebb and flow"
COUNT = 24


def request(count: int = COUNT, prompt: str = PROMPT, **more: Any) -> dict[str, Any]:
    """Return a greedy completion request that ends at `count` tokens and nowhere else."""
    fixed = {"model": "tiny", "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {**fixed, "prompt": prompt, "max_tokens": count, **more}


def post(url: str, body: dict[str, Any], timeout: float = 120) -> httpx2.Response:
    """Ask once, on a connection of its own."""
    with httpx2.Client(timeout=timeout, trust_env=False) as client:
        return client.post(f"{url}/v1/completions", json=body)


def greedy(url: str, count: int = COUNT, prompt: str = PROMPT) -> list[int]:
    """Return greedy tokens, which must come."""
    answer = post(url, request(count, prompt))
    assert answer.status_code == 200, answer.text
    return [int(token) for token in answer.json()["choices"][0]["token_ids"]]


class Stream:
    """A streamed completion, read in a thread from the first tokens on."""

    def __init__(self, url: str, count: int) -> None:
        self.tokens: list[int] = []
        self.status = 0
        self.reason: str | None = None
        self.done = False
        self.error: object = None
        self.problem: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, count), daemon=True)
        self._thread.start()
        until(lambda: len(self.tokens) > 2 or not self._thread.is_alive(), "the first tokens", 60)
        assert self._thread.is_alive(), (self.status, self.problem, self.tokens)

    def _read(self, url: str, count: int) -> None:
        body = request(count, stream=True)
        try:
            with (
                httpx2.Client(timeout=120, trust_env=False) as client,
                client.stream("POST", f"{url}/v1/completions", json=body) as answer,
            ):
                self.status = answer.status_code
                self._take(answer.iter_lines())
        except httpx2.HTTPError as problem:
            self.problem = problem

    def _take(self, lines: Iterator[str]) -> None:
        for line in lines:
            if self._stop.is_set():
                return
            if line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                self._chunk(json.loads(line[6:]))

    def _chunk(self, chunk: dict[str, Any]) -> None:
        # An engine that dies says so in the stream, where the status was sent long ago.
        self.error = chunk.get("error", self.error)
        for choice in chunk.get("choices", []):
            self.tokens += choice.get("token_ids") or []
            self.reason = choice["finish_reason"] or self.reason

    def join(self) -> None:
        """Wait for the end of the stream."""
        self._thread.join(180)
        assert not self._thread.is_alive(), f"a stream hangs after {len(self.tokens)} tokens"

    def wait_for_more(self) -> None:
        """Wait for a further token: the stream goes on."""
        before = len(self.tokens)
        until(lambda: len(self.tokens) > before, "a further token", 60)

    def hang_up(self) -> None:
        """Leave in the middle of it."""
        self._stop.set()
        self.join()


class Poller:
    """Asks for one token, again and again: what a user of the model sees meanwhile."""

    def __init__(self, url: str) -> None:
        self.statuses: list[int] = []
        self.codes: set[str] = set()
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        with httpx2.Client(timeout=60, trust_env=False) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post(f"{self._url}/v1/completions", json=request(1))
                except httpx2.HTTPError:
                    self.statuses.append(0)
                    continue
                self.statuses.append(answer.status_code)
                if answer.status_code != 200:
                    self.codes.add(str(answer.json().get("code")))

    def wait_for_answers(self, more: int = 3) -> None:
        """Wait for `more` further answers."""
        wanted = len(self.statuses) + more
        until(lambda: len(self.statuses) >= wanted, "answers", 60)

    def __enter__(self) -> Poller:
        self._thread.start()
        self.wait_for_answers()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(90)


@contextmanager
def streaming(url: str, count: int) -> Iterator[Stream]:
    """Have a stream in flight; whoever leaves does not leave it behind."""
    stream = Stream(url, count)
    try:
        yield stream
    finally:
        stream.hang_up()
