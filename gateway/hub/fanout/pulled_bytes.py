"""Let the bytes of a client be pulled, as by an ASGI server or a program."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from gateway.client_memory import MAX_UNCOUNTED_BYTES, HeldPart
from gateway.core.client.terms import EndReason
from gateway.errors import MemoryFull

if TYPE_CHECKING:
    from .client import Client, Handover

MAX_UNREAD_BYTES = 64 << 10  # with so many that were not pulled, it is full


class PulledBytes:
    """An outlet. Iterate it until the stream ends or another client goes on with it.

    `anext` may be cancelled and called again; until then, the bytes that it returned count as
    unsent. Who closes the client while somebody may be waiting closes this as well.

    Args:
        abort: Called when the bytes were dropped because too much is held for clients: `anext`
            raises MemoryFull from then on, but whoever pulls may wait for his own client. Without
            it they are in no account: somebody who pulls them always goes on.

    Attributes:
        end_position: The resume token behind the last bytes; empty until they were written.
        handover: Set if another client goes on behind them.
    """

    def __init__(self, client: Client, abort: Callable[[], object] | None = None) -> None:
        self.end_position = b""
        self.handover: Handover | None = None
        self._client = client
        self._abort = abort
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._pulled = b""  # what was returned last, but for empty pieces
        self._is_flushing = False
        self._has_ended = self._is_dropped = False
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._abort is not None and len(self._pulled) > MAX_UNCOUNTED_BYTES:
            self._is_flushing = not self._is_flushing
            if self._is_flushing:
                # An ASGI server takes it once its connection has what came before, which counts
                # until then. And all that it goes through would keep that until there is more.
                return b""
        self._pulled = b""
        self._count()
        while not self._chunks:
            if self._is_dropped:
                raise MemoryFull
            if self._has_ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        was_full, self._pulled = self.full, self._chunks.popleft()
        self._size -= len(self._pulled)
        self._count()
        if was_full and not self.full:
            self._client.wake()
        return self._pulled

    @property
    def full(self) -> bool:
        return self._size >= MAX_UNREAD_BYTES

    def write(self, data: bytes) -> None:
        if self._is_dropped:  # an id would cover what was dropped
            return
        self._chunks.append(data)
        self._size += len(data)
        self._count()
        self._notify()

    def _count(self) -> None:
        if self._abort is None:
            return
        # Others may have the last bytes, too: they count once.
        last = self._chunks[-1] if self._chunks else self._pulled
        size = self._size + len(self._pulled) - len(last)
        self._client.hub.client_memory.hold_if_large(HeldPart.UNSENT, self, size, last)

    def release_memory(self) -> None:
        """End the stream of a client that reads nothing. It resumes from its last id."""
        self._is_dropped = True
        self.drop()
        self._client.end(EndReason.SLOW)
        if self._abort is not None:
            self._abort()

    def drop(self) -> None:
        """Drop what was not pulled: nobody pulls any more."""
        self._chunks.clear()
        self._size, self._pulled = 0, b""
        self._count()

    def finish(self, data: bytes) -> None:
        if data:
            self.write(data)
        self.end_position = self._client.subscription.token
        self.close()

    def hand_over(self) -> None:
        # Now, as the client is closed when this returns: later its position is anything.
        self.handover = self._client.take_handover()
        self.end_position = self.handover.position
        self.close()

    def close(self) -> None:
        """End the iteration behind what was written."""
        self._has_ended = True
        self._notify()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
