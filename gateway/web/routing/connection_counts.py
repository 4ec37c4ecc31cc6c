"""Count connections by worker, address and identity, and limit the rate of requests.

A connection is counted under each of its keys: the key of all connections, the key of its address,
and a key for each identity that it is known by. Sans-I/O: callers pass the time, in seconds of any
monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from gateway.config import Limits as Settings
from gateway.config import Rate

MIN_SWEPT_NAMES = 1024  # remembered names before those whose bucket is full are looked for

MAX_HANDSHAKES = 2000
"""TLS handshakes in progress of all workers together, whatever `connections` allows: 190 MB. One
address has at most half of them, so that no single host keeps the others out."""


class LimitKind(StrEnum):
    """The limit that a key counts towards; every key begins with it."""

    ALL = "connections"
    ADDRESS = "perAddress"
    IDENTITY = "perIdentity"
    RATE = "rate"
    HANDSHAKES = "handshakes"
    HANDSHAKES_OF_ADDRESS = "handshakesPerAddress"
    DESCRIPTORS = "descriptors"

    def build_key(self, name: str = "") -> str:
        return f"{self}:{name}"


TOTAL_KEY = LimitKind.ALL.build_key()


class LimitRefusal(NamedTuple):
    """Why a connection or a request is refused, and how long trying again is useless."""

    limit: LimitKind
    retry_after_s: float = 0.0


class GcraLimiter:
    """Limit how often each name may arrive, by a token bucket per name.

    A bucket holds `burst` tokens, and gets one every `interval_s`. Its only state is the time at
    which it will be full again (GCRA, ITU-T I.371).
    """

    def __init__(self, interval_s: float, burst: int) -> None:
        self._interval_s = interval_s
        self._slack_s = (burst - 1) * interval_s
        self._full_at: dict[str, float] = {}
        self._sweep_size = MIN_SWEPT_NAMES

    def __len__(self) -> int:
        return len(self._full_at)

    def register_arrival(self, name: str, now: float) -> float:
        """Return 0 if an arrival is allowed and was counted, else the seconds until it would be."""
        full = max(now, self._full_at.get(name, now))
        wait = full - now - self._slack_s
        if wait > 1e-9:  # rounding errors of the float arithmetic refuse nobody
            return wait
        self._full_at[name] = full + self._interval_s
        if len(self._full_at) > self._sweep_size:
            self._sweep(now)
        return 0.0

    def _sweep(self, now: float) -> None:
        """Forget the names whose bucket is full: a bucket that is not known is full, too."""
        self._full_at = {name: full for name, full in self._full_at.items() if full > now}
        # Waiting until the number has doubled makes a sweep cost O(1) per arrival.
        self._sweep_size = max(MIN_SWEPT_NAMES, 2 * len(self._full_at))


class ConnectionCounts:
    """The connections of all workers, or of one.

    The supervisor owns one for all workers, and each worker owns one of its own. Between calls, the
    count of a key is the sum of that key's counts of all workers, and no count of 0 is kept.
    """

    def __init__(
        self, max_by_kind: Mapping[LimitKind, int], rate_limiter: GcraLimiter | None = None
    ) -> None:
        """Create empty counts; a kind that `max_by_kind` lacks has no limit."""
        self._max_by_kind = max_by_kind
        self._rate_limiter = rate_limiter
        self._by_worker: dict[int, Counter[str]] = {}
        self._by_key: Counter[str] = Counter()

    @classmethod
    def from_settings(cls, settings: Settings, worker_count: int = 1) -> ConnectionCounts:
        """Create counts with each worker's share of `listen.limits`, rounded up."""
        limits = {
            LimitKind.ALL: settings.connections,
            LimitKind.ADDRESS: settings.per_address,
            LimitKind.IDENTITY: settings.per_identity,
            **_build_handshake_limits(settings),
        }
        max_by_kind = {kind: -(-n // worker_count) for kind, n in limits.items() if n is not None}
        return cls(max_by_kind, _create_rate_limiter(settings.rate, settings.burst, worker_count))

    @property
    def total(self) -> int:
        return self._by_key[TOTAL_KEY]

    def get_held(self, worker: int) -> Mapping[str, int]:
        return self._by_worker.get(worker, {})

    def acquire(self, worker: int, keys: Sequence[str], now: float) -> LimitRefusal | None:
        """Count a connection under all of these keys, or return the first limit that refuses it.

        A key of kind RATE holds nothing: it only counts as an arrival.
        """
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
            # A kind without a limit is compared with one more than its count, so it never refuses.
            elif self._by_key[key] >= self._max_by_kind.get(LimitKind(kind), self._by_key[key] + 1):
                return LimitRefusal(LimitKind(kind))
        self.add(worker, count_keys(keys))
        return None

    def add(self, worker: int, counts: Mapping[str, int]) -> None:
        """Count connections that exist, even if they exceed a limit."""
        held = self._by_worker.setdefault(worker, Counter())
        for key, count in counts.items():
            held[key] += count
            self._by_key[key] += count

    def release(self, worker: int, counts: Mapping[str, int]) -> None:
        """Remove connections of a worker, by key; at most those that it has."""
        held = self._by_worker.get(worker, Counter())
        for key, count in counts.items():
            released = min(count, held[key])
            for counter in (held, self._by_key):
                counter[key] -= released
                if not counter[key]:
                    del counter[key]

    def remove_worker(self, worker: int) -> None:
        self.release(worker, dict(self.get_held(worker)))
        self._by_worker.pop(worker, None)


def count_keys(keys: Iterable[str]) -> dict[str, int]:
    """Return the counts of a connection: 1 under each key, except under keys of RATE."""
    return {key: 1 for key in keys if not key.startswith(f"{LimitKind.RATE}:")}


def _build_handshake_limits(settings: Settings) -> dict[LimitKind, int]:
    """Return how many TLS handshakes there may be; never more than connections."""
    total = min(settings.connections or MAX_HANDSHAKES, MAX_HANDSHAKES)
    per_address = min(settings.per_address or MAX_HANDSHAKES // 2, total)
    return {LimitKind.HANDSHAKES: total, LimitKind.HANDSHAKES_OF_ADDRESS: per_address}


def _create_rate_limiter(
    rate: Rate | None, burst: int | None, worker_count: int
) -> GcraLimiter | None:
    if rate is None:
        return None
    # Each of several workers gets a share of the rate and, rounded up, of the burst.
    return GcraLimiter(rate.interval * worker_count, -(-(burst or rate.count) // worker_count))
