"""Remember which idempotency keys were written, so that a repeated produce is one record.

A key stands for one record, so the digest of its first record is kept beside it: the same key with
another record is a mistake that is reported (KeyReused), not a repetition. Keys that were written
are remembered for `max_age_s` seconds; keys in flight as long as they are. Of more than `max_keys`,
the oldest are dropped: `may_be_dropped` says which keys have to be looked for in the log, and
`list_dropped_ranges` in which parts of it. Sans-I/O: time is an argument, in seconds of any
monotonic clock.

A key of the sidecar stands for a request with several records, whose answer is given again. Such
keys are claimed in a topic of their own instead (`gateway.core.delivery.claims`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct
from typing import Generic, NamedTuple, TypeVar

from gateway.errors import KeyReused

F = TypeVar("F")

WRITTEN_KEY_BYTES = 200  # about what the window takes for a key that was written
BLOCK_OFFSETS = 1000  # what is read of a partition's log to find a dropped key again


class IdempotencyKey(NamedTuple):
    topic: str
    scope: str
    text: str


class RecordLocation(NamedTuple):
    """Where a key's record is; -1 is an offset that Kafka did not say."""

    partition: int
    offset: int


# Of a key that was written: the digest of its record, partition, offset, and when it was added.
_WRITTEN = Struct("<16siqd")


class RecentNames:
    """Names that were added in the last `max_age_s` seconds, and a few others.

    Two Bloom filters (Bloom 1970) of which the older is replaced each time that it is out of date,
    so that any number of names take 8 MiB. With two million of them, one in 1,300 others seems to
    be there.
    """

    BITS = 1 << 25  # of each filter
    HASHES = 6

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._filters = (bytearray(), bytearray())  # the older one first; empty ones have no names
        self._began_at = 0.0  # when the newer one was begun

    @property
    def used_bytes(self) -> int:
        return sum(map(len, self._filters))

    def add(self, name: Hashable, now: float) -> None:
        self._rotate(now)
        bits = self._filters[1]
        if not bits:
            bits.extend(bytes(self.BITS // 8))
            self._began_at = now
        for bit in self._iter_bits(name):
            bits[bit >> 3] |= 1 << (bit & 7)

    def may_have(self, name: Hashable, now: float) -> bool:
        self._rotate(now)
        return any(
            bits and all(bits[bit >> 3] & (1 << (bit & 7)) for bit in self._iter_bits(name))
            for bits in self._filters
        )

    def _rotate(self, now: float) -> None:
        for _ in range(2):
            if any(self._filters) and now - self._began_at >= self._max_age_s:
                self._filters = (self._filters[1], bytearray())
                self._began_at += self._max_age_s

    def _iter_bits(self, name: Hashable) -> Iterator[int]:
        step, bit = divmod(hash(name), 1 << 32)
        for _ in range(self.HASHES):
            bit = (bit + step) % self.BITS
            yield bit


@dataclass(slots=True)
class IdempotencyWindow(Generic[F]):
    """The keys that one gateway remembers.

    The publisher owns it. Its type parameter stands for a write in flight, such as its task.
    Invariant: `_written` is in the order of writing, so that expired keys are at its start. It has
    digests and packed values: keys that were read from a log have any length.
    """

    max_keys: int = 100_000
    max_age_s: float = 600.0
    _written: dict[bytes, bytes] = field(default_factory=dict)  # oldest first
    _in_flight: dict[IdempotencyKey, tuple[bytes, F]] = field(default_factory=dict)
    _dropped: RecentNames = field(init=False)

    def __post_init__(self) -> None:
        self._dropped = RecentNames(self.max_age_s)

    def __len__(self) -> int:
        return len(self._written) + len(self._in_flight)

    @property
    def used_bytes(self) -> int:
        """Return about what the keys that were written take."""
        return len(self._written) * WRITTEN_KEY_BYTES + self._dropped.used_bytes

    def lookup_written(
        self, key: IdempotencyKey, digest: bytes, now: float
    ) -> RecordLocation | None:
        """Return where the key's record is; None if it was not written. Raises KeyReused."""
        self._evict(now)
        written = self._written.get(_digest_key(key))
        if written is None:
            return None
        written_digest, partition, offset, _ = _WRITTEN.unpack(written)
        _require_same_digest(key, written_digest, digest)
        return RecordLocation(partition, offset)

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
        self._written.setdefault(_digest_key(key), _WRITTEN.pack(digest, *location, now))
        self._evict(now)

    def may_be_dropped(self, key: IdempotencyKey, now: float) -> bool:
        """Return whether a key that is not known may have been written in the window."""
        return self._dropped.may_have(_digest_key(key), now)

    def list_dropped_ranges(self, key: IdempotencyKey, offsets: range, now: float) -> list[range]:
        """Return where in these offsets of its partition's log a dropped key may be."""
        start, end, name = offsets.start, offsets.stop, _digest_key(key)
        if self._dropped.may_have((name, -1), now):  # Kafka did not say its offset
            return [offsets]
        return [
            range(max(start, block * BLOCK_OFFSETS), min(end, (block + 1) * BLOCK_OFFSETS))
            for block in range(start // BLOCK_OFFSETS, -(-end // BLOCK_OFFSETS))
            if self._dropped.may_have((name, block), now)
        ]

    def _evict(self, now: float) -> None:
        while self._written:
            oldest = next(iter(self._written))
            _, _, offset, written_at = _WRITTEN.unpack(self._written[oldest])
            is_recent = now - written_at < self.max_age_s
            if len(self._written) <= self.max_keys and is_recent:
                return
            del self._written[oldest]
            if is_recent:
                self._dropped.add(oldest, now)
                self._dropped.add((oldest, offset // BLOCK_OFFSETS), now)


def _digest_key(key: IdempotencyKey) -> bytes:
    return blake2b(repr(key).encode(), digest_size=16).digest()


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
            f"'{key.topic}'; give every record a key of its own"
        )
