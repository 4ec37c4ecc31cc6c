"""Who holds how many connections, and who comes how often.

A connection has a place under each of its keys: one of all, one of its address, one for each
identity that it is known by. Sans-I/O: time is an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from gateway.config import Limits as Settings
from gateway.config import Rate

MIN_SWEPT_NAMES = 1024  # names before those are looked for that need not be remembered

MAX_HANDSHAKES = 2000
"""TLS handshakes under way of all workers together, whatever `connections` allows: 190 MB. One
address has at most half of them, so that no single host keeps the others out."""


class LimitKind(StrEnum):
    """Which limit is reached; what a key begins with."""

    ALL = "connections"
    ADDRESS = "perAddress"
    IDENTITY = "perIdentity"
    RATE = "rate"
    HANDSHAKES = "handshakes"
    HANDSHAKES_OF_ADDRESS = "handshakesPerAddress"

    def build_key(self, name: str = "") -> str:
        return f"{self}:{name}"


TOTAL_KEY = LimitKind.ALL.build_key()


class LimitRefusal(NamedTuple):
    """wait: seconds for which it would be in vain to come again, if that is known."""

    limit: LimitKind
    retry_after_s: float = 0.0


class GcraLimiter:
    """How often each name may come: a bucket of `burst` for each, filled at a rate.

    All there is to remember of a bucket is when it will be full again (GCRA, ITU-T I.371).
    """

    def __init__(self, interval_s: float, burst: int) -> None:
        self._interval_s = interval_s
        self._slack_s = (burst - 1) * interval_s
        self._full_at: dict[str, float] = {}
        self._sweep_size = MIN_SWEPT_NAMES

    def __len__(self) -> int:
        return len(self._full_at)

    def register_arrival(self, name: str, now: float) -> float:
        """Seconds until it may come; 0 if it may, and has."""
        full = max(now, self._full_at.get(name, now))
        wait = full - now - self._slack_s
        if wait > 1e-9:
            return wait
        self._full_at[name] = full + self._interval_s
        if len(self._full_at) > self._sweep_size:
            self._sweep(now)
        return 0.0

    def _sweep(self, now: float) -> None:
        self._full_at = {name: full for name, full in self._full_at.items() if full > now}
        self._sweep_size = max(MIN_SWEPT_NAMES, 2 * len(self._full_at))


class ConnectionCounts:
    """The counts of all workers, or of one.

    most: of each kind of key; none for any number.
    """

    def __init__(
        self, max_by_kind: Mapping[LimitKind, int], rate_limiter: GcraLimiter | None = None
    ) -> None:
        self._max_by_kind = max_by_kind
        self._rate_limiter = rate_limiter
        self._by_worker: dict[int, Counter[str]] = {}
        self._by_key: Counter[str] = Counter()

    @classmethod
    def from_settings(cls, settings: Settings, worker_count: int = 1) -> ConnectionCounts:
        """workers: so many share the limits, each by itself."""
        limits = {
            LimitKind.ALL: settings.connections,
            LimitKind.ADDRESS: settings.per_address,
            LimitKind.IDENTITY: settings.per_identity,
            **_build_handshake_limits(settings),
        }
        most = {kind: -(-n // worker_count) for kind, n in limits.items() if n is not None}
        return cls(most, _create_rate_limiter(settings.rate, settings.burst, worker_count))

    @property
    def total(self) -> int:
        """Connections."""
        return self._by_key[TOTAL_KEY]

    def get_held(self, worker: int) -> Mapping[str, int]:
        return self._by_worker.get(worker, {})

    def acquire(self, worker: int, keys: Sequence[str], now: float) -> LimitRefusal | None:
        """A place under each of these, or under none. Under a key of RATE nothing is held: it is
        only looked at how often it comes."""
        for key in keys:
            kind, _, name = key.partition(":")
            if kind == LimitKind.RATE:
                wait = (
                    self._rate_limiter.register_arrival(name, now)
                    if self._rate_limiter is not None
                    else 0.0
                )
                if wait:
                    return LimitRefusal(LimitKind.RATE, wait)
            elif self._by_key[key] >= self._max_by_kind.get(LimitKind(kind), self._by_key[key] + 1):
                return LimitRefusal(LimitKind(kind))
        self.add(worker, count_keys(keys))
        return None

    def add(self, worker: int, counts: Mapping[str, int]) -> None:
        """They are there, whether it is too many or not."""
        held = self._by_worker.setdefault(worker, Counter())
        for key, count in counts.items():
            held[key] += count
            self._by_key[key] += count

    def release(self, worker: int, counts: Mapping[str, int]) -> None:
        held = self._by_worker.get(worker, Counter())
        for key, count in counts.items():
            gone = min(count, held[key])
            for each in (held, self._by_key):
                each[key] -= gone
                if not each[key]:
                    del each[key]

    def remove_worker(self, worker: int) -> None:
        """It ended, and all of its connections with it."""
        self.release(worker, dict(self.get_held(worker)))
        self._by_worker.pop(worker, None)


def count_keys(keys: Iterable[str]) -> dict[str, int]:
    """What is held under these keys."""
    return {key: 1 for key in keys if not key.startswith(f"{LimitKind.RATE}:")}


def _build_handshake_limits(settings: Settings) -> dict[LimitKind, int]:
    """Return how many TLS handshakes there may be, which ends as many as connections may."""
    every = min(settings.connections or MAX_HANDSHAKES, MAX_HANDSHAKES)
    one = min(settings.per_address or MAX_HANDSHAKES // 2, every)
    return {LimitKind.HANDSHAKES: every, LimitKind.HANDSHAKES_OF_ADDRESS: one}


def _create_rate_limiter(
    rate: Rate | None, burst: int | None, worker_count: int
) -> GcraLimiter | None:
    if rate is None:
        return None
    return GcraLimiter(rate.interval * worker_count, -(-(burst or rate.count) // worker_count))
