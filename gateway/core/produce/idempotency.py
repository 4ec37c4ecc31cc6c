"""Which idempotency keys were written already: what makes a repeated produce one record.

A key stands for one record, so the digest of what it was first used with is kept beside it:
the same key with something else is a mistake that is told, not a repeat. What was written is
remembered for `age` seconds and `most` keys, whichever is less; what is under way as long as it
is. Sans-I/O: time is an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, NamedTuple, TypeVar

from gateway.errors import KeyReused

F = TypeVar("F")


class IdempotencyKey(NamedTuple):
    """scope: whose key it is, such as a route's name; equal keys of two scopes are two."""

    topic: str
    scope: str
    text: str


class RecordLocation(NamedTuple):
    """Where its record is. offset -1: Kafka has it, and did not say where."""

    partition: int
    offset: int


class _WrittenKey(NamedTuple):
    digest: bytes
    location: RecordLocation
    written_at: float


@dataclass(slots=True)
class IdempotencyWindow(Generic[F]):
    """The keys of one gateway. F: what stands for a write under way, such as its task."""

    max_keys: int = 100_000
    max_age_s: float = 600.0
    _written: dict[IdempotencyKey, _WrittenKey] = field(default_factory=dict)  # oldest first
    _in_flight: dict[IdempotencyKey, tuple[bytes, F]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._written) + len(self._in_flight)

    def lookup_written(
        self, key: IdempotencyKey, digest: bytes, now: float
    ) -> RecordLocation | None:
        """Where the key's record is, if it was written. Raises KeyReused."""
        self._evict(now)
        known = self._written.get(key)
        if known is None:
            return None
        _require_same_digest(key, known.digest, digest)
        return known.location

    def lookup_in_flight(self, key: IdempotencyKey, digest: bytes) -> F | None:
        """What writes the key's record just now. Raises KeyReused."""
        flying = self._in_flight.get(key)
        if flying is None:
            return None
        _require_same_digest(key, flying[0], digest)
        return flying[1]

    def begin(self, key: IdempotencyKey, digest: bytes, write: F) -> None:
        assert key not in self._in_flight, "a key has one flight"
        self._in_flight[key] = digest, write

    def end(self, key: IdempotencyKey) -> None:
        """Its flight is over; what came of it is learned, or not known."""
        self._in_flight.pop(key, None)

    def add_written(
        self, key: IdempotencyKey, digest: bytes, location: RecordLocation, now: float
    ) -> None:
        """A record with this key is in Kafka, whoever wrote it; the first one counts."""
        self._written.setdefault(key, _WrittenKey(digest, location, now))
        self._evict(now)

    def _evict(self, now: float) -> None:
        while self._written:
            oldest = next(iter(self._written))
            since = self._written[oldest].written_at
            if len(self._written) <= self.max_keys and now - since < self.max_age_s:
                return
            del self._written[oldest]


def hash_record(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> bytes:
    """Of what a record says: 16 bytes, each part by its length, so that none runs into another."""
    hashed = blake2b(digest_size=16)
    parts = [key, value]
    for name, content in headers:
        parts += [name.encode(), content]
    for part in parts:
        hashed.update(b"-" if part is None else b"%d:" % len(part))
        hashed.update(part or b"")
    return hashed.digest()


def _require_same_digest(key: IdempotencyKey, one: bytes, other: bytes) -> None:
    if one != other:
        raise KeyReused(
            422,
            "Idempotency key reused",
            f"the idempotency key '{key.text}' was used for another record of topic "
            f"'{key.topic}'; give every record a key of its own",
        )
