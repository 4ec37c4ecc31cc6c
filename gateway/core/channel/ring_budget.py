"""Bound the rings of all channels together, and choose which of them give way.

Each channel bounds its own ring, but how many channels there are is the choice of clients: each
filter is a view. The chunk that exceeds the common limit makes others be dropped at once. A
follower whose chunks are dropped goes on from the log, or from Kafka: it loses nothing and is
slower. Counting costs one addition per chunk. Dropping looks at all channels, once for every
quarter of the limit that is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .chunk_ring import ChunkRing

DEFAULT_MAX_RING_BYTES = 1 << 20  # bytes of one channel's chunks


class RingBudget:
    """The bytes that the rings of some channels hold, within a limit.

    One instance per hub, shared by its channels. A channel calls `grow` for added bytes, which
    drops chunks as soon as `bytes` exceeds `limit`, and subtracts its dropped bytes from `bytes`.
    `LatestOffsets` of conflated keys count as well, until they are freed. `max_ring_bytes` bounds
    one ring; its newest chunk stays even if it is larger.
    """

    __slots__ = ("_list_rings", "bytes", "limit", "max_ring_bytes")

    def __init__(
        self,
        limit: int | None = None,
        list_rings: Callable[[], Iterable[ChunkRing]] = lambda: (),
        max_ring_bytes: int = DEFAULT_MAX_RING_BYTES,
    ) -> None:
        self.bytes = 0
        self.max_ring_bytes = max_ring_bytes
        self.limit = limit
        self._list_rings = list_rings

    def has_capacity(self, size: int) -> bool:
        return self.limit is None or self.bytes + size <= self.limit

    def grow(self, size: int) -> None:
        self.bytes += size
        if self.limit is not None and self.bytes > self.limit:
            self._shrink_to(self.limit * 3 // 4)

    def _shrink_to(self, max_bytes: int) -> None:
        """Drop chunks until at most `max_bytes` bytes are held.

        Chunks that all followers have taken go first. Then the largest rings go: they are large
        because some follower lags, so channels whose followers keep up are spared as long as
        possible.
        """
        rings = [ring for ring in self._list_rings() if ring.bytes]
        for ring in rings:
            ring.drop_consumed()
        rings.sort(key=lambda ring: ring.bytes, reverse=True)
        for ring in rings:
            # If all rings are dropped and more is still held, that is `LatestOffsets`, which stop
            # growing at the limit.
            if self.bytes <= max_bytes:
                return
            ring.drop_all()
            ring.notify_followers()
