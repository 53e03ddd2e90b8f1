"""The ranks of the fake engine: what they hold, and what the control routes do to it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import KV, ParkedCopy, RankState, Weights

MIB = 1 << 20
BASE = 100 * MIB
WEIGHTS = 200 * MIB
KV_BYTES = 50 * MIB


@dataclass
class Rank:
    """One rank. `mapped`: its weights have memory, be there weights in it or not."""

    number: int
    share: int
    weights: Weights = Weights.RESIDENT
    kv: KV = KV.RESIDENT
    mapped: bool = True
    version: int = 0
    pending: int | None = None
    parked: int | None = None
    copied: int = 0

    @property
    def bytes(self) -> int:
        return (WEIGHTS * self.mapped + KV_BYTES * (self.kv is KV.RESIDENT)) // self.share

    def state(self) -> RankState:
        copy = None if self.parked is None else self.parked == self.version and self.pending is None
        parked = ParkedCopy(version=self.parked or 0, mib=WEIGHTS / MIB / self.share, valid=bool(copy))
        return RankState(
            rank=self.number,
            pid=1,
            weights=self.weights,
            kv=self.kv,
            version=self.version,
            pending_version=self.pending,
            weights_mib=WEIGHTS / MIB / self.share,
            kv_mib=KV_BYTES / MIB / self.share,
            parked=parked if self.parked is not None else None,
            copied_bytes=self.copied,
        )


@dataclass
class Fleet:
    """All ranks of one replica."""

    count: int
    ranks: list[Rank] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks = [Rank(number, self.count) for number in range(self.count)]

    @property
    def bytes(self) -> int:
        return BASE + sum(rank.bytes for rank in self.ranks)

    @property
    def parked_bytes(self) -> int:
        return sum(WEIGHTS // self.count for rank in self.ranks if rank.parked is not None)

    @property
    def whole(self) -> bool:
        return all(rank.weights is Weights.RESIDENT and rank.kv is KV.RESIDENT for rank in self.ranks)

    def require_whole(self) -> None:
        if not self.whole or any(rank.pending is not None for rank in self.ranks):
            raise EbbtideError(ErrorCode.WEIGHTS_NOT_COMMITTED, "not whole")

    def _told(self, only_first: bool) -> list[Rank]:
        return self.ranks[:1] if only_first else self.ranks

    def sleep(self, level: int, only_first: bool = False) -> None:
        for rank in self._told(only_first):
            if not rank.mapped:
                continue  # vLLM: already sleeping, a log line
            rank.copied = 0 if level == 2 or rank.parked == rank.version else WEIGHTS // self.count
            rank.parked = rank.version if level == 1 else rank.parked
            keeps = level == 1 and rank.weights is Weights.RESIDENT
            rank.weights = Weights.PARKED if keeps else Weights.DISCARDED
            rank.kv, rank.mapped = KV.DISCARDED, False

    def wake(self, tag: str, only_first: bool = False) -> None:
        for rank in self._told(only_first):
            if tag == "weights":
                rank.weights = Weights.RESIDENT if rank.weights is Weights.PARKED else rank.weights
                rank.mapped = True
            else:
                rank.kv = KV.RESIDENT

    def reload(self, path: Path, version: int, only_first: bool = False) -> None:
        if version and not list(path.glob("*.safetensors")):
            raise EbbtideError(ErrorCode.ENGINE_FAULTED, f"nothing to load in {path}")
        for rank in self._told(only_first):
            rank.weights, rank.pending = Weights.RESIDENT, version

    def commit(self, version: int, only_first: bool = False) -> None:
        for rank in self._told(only_first):
            rank.version, rank.pending = version, None

    def park(self) -> None:
        for rank in self.ranks:
            rank.parked = rank.version

    def tokens(self, prompt: str, count: int) -> list[int]:
        """Return the greedy tokens of a prompt: they depend on the version, as those of real weights do."""
        seed = zlib.crc32(f"{self.ranks[0].version} {prompt}".encode())
        return [(seed >> index) % 512 for index in range(count)]
