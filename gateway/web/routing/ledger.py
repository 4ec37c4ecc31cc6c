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

LEAST_SWEPT = 1024  # names before those are looked for that need not be remembered

MAX_HANDSHAKES = 2000
"""TLS handshakes under way of all workers together, whatever `connections` allows: 190 MB. One
address has at most half of them, so that no single host keeps the others out."""


class Full(StrEnum):
    """Which limit is reached; what a key begins with."""

    ALL = "connections"
    ADDRESS = "perAddress"
    IDENTITY = "perIdentity"
    RATE = "rate"
    HANDSHAKES = "handshakes"
    HANDSHAKES_OF_ADDRESS = "handshakesPerAddress"

    def key(self, name: str = "") -> str:
        return f"{self}:{name}"


EVERY = Full.ALL.key()


class Refused(NamedTuple):
    """wait: seconds for which it would be in vain to come again, if that is known."""

    full: Full
    wait: float = 0.0


class Arrivals:
    """How often each name may come: a bucket of `burst` for each, filled at a rate.

    All there is to remember of a bucket is when it will be full again (GCRA, ITU-T I.371).
    """

    def __init__(self, interval: float, burst: int) -> None:
        self._interval = interval
        self._slack = (burst - 1) * interval
        self._full: dict[str, float] = {}
        self._sweep_at = LEAST_SWEPT

    def __len__(self) -> int:
        return len(self._full)

    def come(self, name: str, now: float) -> float:
        """Seconds until it may come; 0 if it may, and has."""
        full = max(now, self._full.get(name, now))
        wait = full - now - self._slack
        if wait > 1e-9:
            return wait
        self._full[name] = full + self._interval
        if len(self._full) > self._sweep_at:
            self._sweep(now)
        return 0.0

    def _sweep(self, now: float) -> None:
        self._full = {name: full for name, full in self._full.items() if full > now}
        self._sweep_at = max(LEAST_SWEPT, 2 * len(self._full))


class Ledger:
    """The counts of all workers, or of one.

    most: of each kind of key; none for any number.
    """

    def __init__(self, most: Mapping[Full, int], arrivals: Arrivals | None = None) -> None:
        self._most = most
        self._arrivals = arrivals
        self._held: dict[int, Counter[str]] = {}
        self._counts: Counter[str] = Counter()

    @classmethod
    def of(cls, settings: Settings, workers: int = 1) -> Ledger:
        """workers: so many share the limits, each by itself."""
        limits = {
            Full.ALL: settings.connections,
            Full.ADDRESS: settings.per_address,
            Full.IDENTITY: settings.per_identity,
            **_handshakes(settings),
        }
        most = {kind: -(-n // workers) for kind, n in limits.items() if n is not None}
        return cls(most, _arrivals(settings.rate, settings.burst, workers))

    @property
    def total(self) -> int:
        """Connections."""
        return self._counts[EVERY]

    def held(self, worker: int) -> Mapping[str, int]:
        return self._held.get(worker, {})

    def take(self, worker: int, keys: Sequence[str], now: float) -> Refused | None:
        """A place under each of these, or under none. Under a key of RATE nothing is held: it is
        only looked at how often it comes."""
        for key in keys:
            kind, _, name = key.partition(":")
            if kind == Full.RATE:
                wait = self._arrivals.come(name, now) if self._arrivals is not None else 0.0
                if wait:
                    return Refused(Full.RATE, wait)
            elif self._counts[key] >= self._most.get(Full(kind), self._counts[key] + 1):
                return Refused(Full(kind))
        self.add(worker, places(keys))
        return None

    def add(self, worker: int, counts: Mapping[str, int]) -> None:
        """They are there, whether it is too many or not."""
        held = self._held.setdefault(worker, Counter())
        for key, count in counts.items():
            held[key] += count
            self._counts[key] += count

    def give(self, worker: int, counts: Mapping[str, int]) -> None:
        held = self._held.get(worker, Counter())
        for key, count in counts.items():
            gone = min(count, held[key])
            for each in (held, self._counts):
                each[key] -= gone
                if not each[key]:
                    del each[key]

    def forget(self, worker: int) -> None:
        """It ended, and all of its connections with it."""
        self.give(worker, dict(self.held(worker)))
        self._held.pop(worker, None)


def places(keys: Iterable[str]) -> dict[str, int]:
    """What is held under these keys."""
    return {key: 1 for key in keys if not key.startswith(f"{Full.RATE}:")}


def _handshakes(settings: Settings) -> dict[Full, int]:
    """Return how many TLS handshakes there may be, which ends as many as connections may."""
    every = min(settings.connections or MAX_HANDSHAKES, MAX_HANDSHAKES)
    one = min(settings.per_address or MAX_HANDSHAKES // 2, every)
    return {Full.HANDSHAKES: every, Full.HANDSHAKES_OF_ADDRESS: one}


def _arrivals(rate: Rate | None, burst: int | None, workers: int) -> Arrivals | None:
    if rate is None:
        return None
    return Arrivals(rate.interval * workers, -(-(burst or rate.count) // workers))
