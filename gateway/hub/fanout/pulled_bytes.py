"""Let the bytes of a client be pulled, as by an ASGI server or a program."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from .client import Client

MAX_UNREAD_BYTES = 64 << 10  # with so many that were not pulled, it is full


class PulledBytes:
    """An outlet. Iterate it until the stream ends or another client goes on with it.

    `anext` may be cancelled and called again. Who closes the client while somebody may be waiting
    closes this as well.

    Attributes:
        end_position: The resume token behind the last bytes; empty until they were written.
    """

    def __init__(self, client: Client) -> None:
        self.end_position = b""
        self._client = client
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self._has_ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        was_full, data = self.full, self._chunks.popleft()
        self._size -= len(data)
        if was_full and not self.full:
            self._client.wake()
        return data

    @property
    def full(self) -> bool:
        return self._size >= MAX_UNREAD_BYTES

    def write(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        self._notify()

    def finish(self, data: bytes) -> None:
        if data:
            self.write(data)
        self.hand_over()

    def hand_over(self) -> None:
        self.end_position = self._client.subscription.token
        self.close()

    def close(self) -> None:
        """End the iteration behind what was written."""
        self._has_ended = True
        self._notify()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
