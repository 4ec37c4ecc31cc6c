"""Remember which idempotency keys were written, so that a repeated produce is one record.

A key stands for one record, so the digest of its first record is kept beside it: the same key with
another record is a mistake that is reported (KeyReused), not a repetition. Keys that were written
are remembered for `max_age_s` seconds and up to `max_keys` keys, whichever ends first; keys in
flight as long as they are. Sans-I/O: time is an argument, in seconds of any monotonic clock.

A key of the sidecar stands for a request with several records, whose answer is given again. Such
keys are claimed in a topic of their own instead (`gateway.core.delivery.claims`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, NamedTuple, TypeVar

from gateway.errors import KeyReused

F = TypeVar("F")


class IdempotencyKey(NamedTuple):
    topic: str
    scope: str
    text: str


class RecordLocation(NamedTuple):
    """Where a key's record is; -1 is an offset that Kafka did not say."""

    partition: int
    offset: int


class _WrittenKey(NamedTuple):
    digest: bytes
    location: RecordLocation
    written_at: float


@dataclass(slots=True)
class IdempotencyWindow(Generic[F]):
    """The keys that one gateway remembers.

    The publisher owns it. Its type parameter stands for a write in flight, such as its task.
    Invariant: `_written` is in the order of writing, so that expired keys are at its start.
    """

    max_keys: int = 100_000
    max_age_s: float = 600.0
    _written: dict[IdempotencyKey, _WrittenKey] = field(default_factory=dict)  # oldest first
    _in_flight: dict[IdempotencyKey, tuple[bytes, F]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._written) + len(self._in_flight)

    def lookup_written(
        self, key: IdempotencyKey, digest: bytes, now: float
    ) -> RecordLocation | None:
        """Return where the key's record is; None if it was not written. Raises KeyReused."""
        self._evict(now)
        written = self._written.get(key)
        if written is None:
            return None
        _require_same_digest(key, written.digest, digest)
        return written.location

    def lookup_in_flight(self, key: IdempotencyKey, digest: bytes) -> F | None:
        """Return the write of the key's record that is in flight, if any. Raises KeyReused."""
        in_flight = self._in_flight.get(key)
        if in_flight is None:
            return None
        _require_same_digest(key, in_flight[0], digest)
        return in_flight[1]

    def begin(self, key: IdempotencyKey, digest: bytes, write: F) -> None:
        assert key not in self._in_flight, "a write of this key is in flight already"
        self._in_flight[key] = digest, write

    def end(self, key: IdempotencyKey) -> None:
        self._in_flight.pop(key, None)

    def add_written(
        self, key: IdempotencyKey, digest: bytes, location: RecordLocation, now: float
    ) -> None:
        """Record that a record with this key is in Kafka, by any writer. The first counts."""
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
    """Return a digest of a record's parts with their lengths, so that none equal another's."""
    hasher = blake2b(digest_size=16)
    parts = [key, value]
    for name, content in headers:
        parts += [name.encode(), content]
    for part in parts:
        hasher.update(b"-" if part is None else b"%d:" % len(part))
        hasher.update(part or b"")
    return hasher.digest()


def _require_same_digest(key: IdempotencyKey, digest: bytes, new_digest: bytes) -> None:
    if digest != new_digest:
        raise KeyReused(
            f"the idempotency key '{key.text}' was used for another record of topic "
            f"'{key.topic}'; give every record a key of its own",
        )
