"""The real stacks of this folder, one at a time: an engine takes half a minute to start, and two cores carry one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.stack import Stack


class Stacks:
    """Keeps at most one stack running."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._name = ""
        self._stack: Stack | None = None

    def get(self, name: str, prepare: Callable[[Stack], None], **settings: Any) -> Stack:
        """Return the stack of that name, started and serving; another one is ended first."""
        if self._stack is None or self._name != name:
            self.close()
            self._stack, self._name = Stack(self._factory.mktemp(name), **settings), name
            self._stack.start()
            self._stack.wait_until_serving()
            prepare(self._stack)
        return self._stack

    def close(self) -> None:
        """End the stack that runs, if one does."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.destroy()


def learn_both(stack: Stack) -> None:
    """Take the oracle, undisturbed: the tokens of the model as it started, and of the weights that tests publish."""
    stack.learn(0)
    stack.teach(1)
    stack.learn(1)


@pytest.fixture(scope="package")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    found = Stacks(tmp_path_factory)
    yield found
    found.close()


@pytest.fixture
def stack(stacks: Stacks) -> Iterator[Stack]:
    """The stack that most tests share: serving before a test, and healed after it, with the right weights."""
    found = stacks.get("plain", learn_both)
    yield found
    try:
        found.wait_until_serving()
        assert found.right()
    except BaseException:
        # What cannot heal is not left to the next test.
        stacks.close()
        raise


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that a test watches while they run."""
    with ThreadPoolExecutor(4) as threads:
        yield threads
