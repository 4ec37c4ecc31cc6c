"""A record on its way to Kafka, and where it was written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from gateway.core.produce.idempotency import IdempotencyKey
from gateway.kafka.produce.pending_records import estimate_size

from .idempotency_log import Headers


class Produced(NamedTuple):
    """The place of a record; what is not known is -1.

    `repeated` says that the record was written before, by an earlier attempt.
    """

    topic: str
    partition: int
    offset: int
    repeated: bool = False


class PendingWrite(NamedTuple):
    """A record as it was handed over.

    Attributes:
        value: The value; None for a tombstone.
        deadline: When it is sent or given up at the latest, by the loop's clock.
        check_allowed: Awaited just before it is written; raises if it may not be.
        waits: Whether somebody waits for where it was written.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    idempotency_key: IdempotencyKey | None
    digest: bytes
    deadline: float
    check_allowed: Callable[[], Awaitable[None]] | None = None
    waits: bool = True

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        return estimate_size(self.key, self.value, self.headers)
