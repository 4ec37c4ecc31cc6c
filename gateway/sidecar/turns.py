"""Let requests convert records one at a time, and other tasks run in between.

A codec may take 0.5 s for one record, such as a JSON Schema with many branches, and a request may
have thousands of them. So a request works for 20 ms at once. If all requests did so in each turn of
the event loop, 60 of them would hold up everything else for more than a second: they wait for each
other instead. Only one request of each client waits for those of other clients, so that nobody
waits longer for a client with many connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from gateway.formats.codec import Codecs, EncodedData, SchemaNotLoaded
from gateway.formats.serialization import LATEST_SCHEMA, SchemaSelector, SerializationFormat

TURN_S = 0.02  # of one request, after which the others get their turn

# The identity or address for which a request converts; empty for groups and other tasks.
current_client: ContextVar[str] = ContextVar("sidecar_client", default="")

T = TypeVar("T")


class _Client:
    """What the requests of one client share.

    Attributes:
        turn: Held by the only one that converts, or waits for other clients.
        further_turn: Held by the only one that waits for `turn` of those that had it before, so
            that a new request waits for one of them, however many there are.
    """

    def __init__(self) -> None:
        self.turn, self.further_turn = asyncio.Lock(), asyncio.Lock()


class _Shared:
    """What the requests of one event loop share.

    Attributes:
        turn: Held by the request that converts.
        clients: Those that have requests that convert, or wait.
        ends_at: When `turn` must be held until the next turn of the event loop.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.clients: WeakValueDictionary[str, _Client] = WeakValueDictionary()
        self.ends_at = 0.0


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


class Turns:
    """The turns of one request, which only exist within the context of `take_turns`."""

    def __init__(
        self, shared: _Shared, client: _Client, before_wait: Callable[[], None] | None
    ) -> None:
        self._shared, self._client, self._before_wait = shared, client, before_wait
        self._held: tuple[asyncio.Lock, ...] = ()

    def is_over(self) -> bool:
        return perf_counter() >= self._shared.ends_at

    async def pass_on(self) -> None:
        await self.wait_for(asyncio.sleep(0))

    async def wait_for(self, work: Awaitable[T]) -> T:
        """Return the result of work that takes a while; others have their turn meanwhile."""
        if self._before_wait is not None:
            self._before_wait()
            self._before_wait = None
        self._end()
        try:
            return await work
        finally:
            await self._begin(self._client.further_turn, self._client.turn, self._shared.turn)

    async def encode(
        self,
        codecs: Codecs,
        format: SerializationFormat,
        topic: str,
        is_key: bool,
        value: Any,
        schema: SchemaSelector = LATEST_SCHEMA,
    ) -> EncodedData:
        """Encode a key or a value; others have their turn while its schema is loaded."""
        try:
            return codecs.encode_cached(format, topic, is_key, value, schema)
        except SchemaNotLoaded:
            encode = await self.wait_for(codecs.load_encoder(format, topic, is_key, schema))
        return encode(value)

    async def _begin(self, *locks: asyncio.Lock) -> None:
        for lock in locks:
            await lock.acquire()
            self._held = (*self._held, lock)
        if self.is_over():
            self._shared.ends_at = perf_counter() + TURN_S

    def _end(self) -> None:
        held, self._held = self._held, ()
        for lock in held:
            if self.is_over():
                asyncio.get_running_loop().call_soon(lock.release)
            else:
                lock.release()


class SharedPlaces(asyncio.Semaphore):
    """Places of requests. Only one request of each client waits for those of other clients."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def acquire(self) -> Literal[True]:
        async with self._lines.setdefault(current_client.get(), asyncio.Lock()):
            return await super().acquire()


@asynccontextmanager
async def take_turns(before_wait: Callable[[], None] | None = None) -> AsyncIterator[Turns]:
    """Let a request convert records within the context, without any await but those of `Turns`.

    `before_wait` is called before the first of these, to count what is kept while others convert.
    The next request begins at once if it has time left of the 20 ms.
    """
    loop = asyncio.get_running_loop()
    shared = _shared.get(loop) or _shared.setdefault(loop, _Shared())
    client = shared.clients.setdefault(current_client.get(), _Client())
    turns = Turns(shared, client, before_wait)
    try:
        await turns._begin(client.turn, shared.turn)
        yield turns
    finally:
        turns._end()
