"""One agent, put together: what it is made of, and the order in which it starts and ends."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ebbtide_api.member import MemberConfig

from ..launcher.page import open_or_create
from .checkpoint import CheckpointError, read_expected
from .engine_client import EngineClient
from .executor import Executor
from .keeper import Keeper
from .member import Member
from .metrics import Metrics
from .observer import Observer
from .receive import Receiver
from .settings import Settings
from .steps import ACTIONS
from .store import Store
from .vector import Board

log = logging.getLogger("ebbtide.agent")
_LAYOUT = {"engine", "tensor_parallel", "pipeline_parallel", "extra_args", "env"}
_ANY = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - an address to recognise, not to bind


class Agent:
    """Everything of one member's agent. `working` must be entered in the event loop that serves it."""

    member: Member
    executor: Executor
    observer: Observer
    board: Board
    receiver: Receiver

    def __init__(self, config: MemberConfig, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        # Read before anything is promised: a damaged memory stops the start.
        self._store = Store(Path(config.home) / "state.json")
        self._secret = Path(config.secret_path).read_text(encoding="utf-8").strip()
        self.metrics = Metrics(config.name)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Watch and serve until the block ends."""
        config = self._config
        _make_folders(config)
        await self._store.fit(*await asyncio.to_thread(_learned_of, config))
        page, keeper = open_or_create(config.page_path), Keeper()
        engine = EngineClient(_engine_url(config), self._secret)
        self.member = Member(config, self._settings, page, self._store, engine, keeper)
        self.member.publish_epoch()
        self.receiver = Receiver(Path(config.received_dir), self._settings.upload_idle_s)
        await asyncio.to_thread(self.receiver.clean)
        self.executor = Executor(self.member, ACTIONS.__getitem__, self.metrics)
        self.board = Board(self.member, lambda: self.executor.current)
        self.member.changed = self._tell
        self.observer = Observer(self.member, self.executor, self.board)
        watching = asyncio.create_task(self.observer.run(), name="observer")
        watching.add_done_callback(_ended)
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self.receiver.close()
            await self.executor.close()
            await self.observer.close()
            keeper.close()
            await engine.close()
            page.close()

    def _tell(self) -> None:
        self.board.refresh()


def _make_folders(config: MemberConfig) -> None:
    for folder in (config.park_dir, config.weights_dir):
        Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        # Without its watch an agent is worse than none: /health turns 503, and whoever started it starts it again.
        log.critical("the watch ended", exc_info=task.exception())


def _engine_url(config: MemberConfig) -> str:
    host = "127.0.0.1" if config.host in _ANY else config.host
    return f"http://{f'[{host}]' if ':' in host else host}:{config.data_port}"


def _learned_of(config: MemberConfig) -> tuple[str, str]:
    """Return digests of the model and of how it runs: what was learned of another one does not hold."""
    try:
        shapes = sorted((name, *kind.shape, kind.dtype) for name, kind in read_expected(config.model).tensors.items())
    except CheckpointError:
        shapes = []  # it is not on this machine: its name has to do
    layout = config.model_dump(mode="json", include=_LAYOUT)
    return _digest([config.model, config.revision, config.quantization, shapes]), _digest(layout)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
