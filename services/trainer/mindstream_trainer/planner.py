"""The planner: which shards make up the next window. Pure bookkeeping; the journal makes its decisions last.

New shards come first, in the order of the catalog. When nothing new has come, and the run may repeat, the shards that
were passed over the fewest times come again. What it decides depends on when shards arrive; what is trained depends on
the journal alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mindstream_common.events import CarriedRows, CatalogShard, Window, WindowShard

MAX_SHARDS = 1000  # a shard with eight row groups is 0.6 kB of JSON, and a message holds 1 MB


class Planner:
    """Keeps what the catalog holds and what the windows have used."""

    def __init__(
        self, run: str, *, rows: int, seconds: float, repeat: bool, domains: Sequence[str] | None = None
    ) -> None:
        self._run = run
        self._rows = rows
        self._seconds = seconds
        self._repeat = repeat
        self._domains = None if domains is None else frozenset(domains)
        self._shards: dict[int, CatalogShard] = {}  # by sequence, those with train rows that this run may use
        self._fresh: dict[int, None] = {}  # of these, in order, the ones that no window has used
        self._fresh_rows = 0
        self._roots: set[str] = set()
        self._passes: Counter[int] = Counter()
        self._waiting_since: float | None = None
        self.catalog_seq = 0  # the last sequence that was read

    def add(self, seq: int, shard: CatalogShard, now: float) -> None:
        """Take note of a catalogued shard. A shard that descends from a raw shard seen before is ignored."""
        self.catalog_seq = max(self.catalog_seq, seq)
        if shard.root in self._roots or (self._domains is not None and shard.domain not in self._domains):
            return
        self._roots.add(shard.root)
        if train_rows(shard):
            self._shards[seq] = shard
            if self._passes[seq]:
                return
            self._fresh[seq] = None
            self._fresh_rows += train_rows(shard)
            if self._waiting_since is None:
                self._waiting_since = now

    def used(self, window: Window) -> None:
        """Take note of a window of the journal."""
        for shard in window.shards:
            self._passes[shard.seq] = max(self._passes[shard.seq], shard.epoch + 1)
            if shard.seq in self._fresh:
                del self._fresh[shard.seq]
                self._fresh_rows -= train_rows(self._shards[shard.seq])
        if not self._fresh:
            self._waiting_since = None

    def next(self, *, number: int, carry: tuple[CarriedRows, ...], now: float, idle: bool) -> Window | None:
        """The next window, or None when it is not time for one, which costs nothing however many shards there are.

        Args:
            number: its number.
            carry: rows that the window before left over.
            now: seconds since the epoch.
            idle: the ranks have nothing (or little) left to train on.
        """
        ready = self._fresh_rows >= self._rows
        overdue = self._waiting_since is not None and now - self._waiting_since >= self._seconds
        if self._fresh and (ready or overdue or idle):
            return self._window(number, self._fresh, carry, now)
        if idle and self._repeat and self._shards:
            least = sorted(self._shards, key=lambda seq: (self._passes[seq], seq))
            first = self._passes[least[0]]
            return self._window(number, [seq for seq in least if self._passes[seq] == first], carry, now)
        return None

    def shard(self, seq: int) -> CatalogShard:
        """The catalog's event with this sequence."""
        return self._shards[seq]

    def _window(self, number: int, seqs: Iterable[int], carry: tuple[CarriedRows, ...], now: float) -> Window:
        chosen: list[WindowShard] = []
        rows = 0
        for seq in seqs:
            shard = self._shards[seq]
            chosen.append(
                WindowShard(seq=seq, shard=shard.id, domain=shard.domain, epoch=self._passes[seq], groups=shard.groups)
            )
            rows += train_rows(shard)
            if rows >= self._rows or len(chosen) == MAX_SHARDS:
                break
        return Window(run=self._run, number=number, shards=tuple(chosen), carry=carry, at=now)


def train_rows(shard: CatalogShard) -> int:
    """How many rows of a shard are trained on."""
    return sum(group.rows for group in shard.groups if group.split == "train")
