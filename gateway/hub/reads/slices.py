"""Share the event loop and tables among clients: each in turn, whatever the others ask for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from time import perf_counter
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from gateway.core.client.terms import ClientKey

T = TypeVar("T")

SLICE_S = 0.002  # seconds of work before other tasks get a turn


class ClientTurns:
    """A lock that clients take in turns, and each client in the order in which it asks.

    A client that asks again and again keeps nobody waiting for more than one of its turns.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._client_locks: WeakValueDictionary[ClientKey, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, client_key: ClientKey) -> AsyncIterator[None]:
        client_lock = self._client_locks.setdefault(client_key, asyncio.Lock())
        async with client_lock, self._lock:
            yield


class Slice(Generic[T]):
    """Work that returns soon once its argument says that time is over, for all who wait for it."""

    def __init__(self, work: Callable[[Callable[[], bool]], T]) -> None:
        self.done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.waiter_count = 0
        self._work = work

    @property
    def is_needed(self) -> bool:
        return self.waiter_count > 0 and not self.done.done()

    def run(self) -> None:
        slice_end = perf_counter() + SLICE_S
        try:
            self.done.set_result(self._work(lambda: perf_counter() > slice_end))
        except Exception as error:
            self.done.set_exception(error)


class Slices:
    """Lines of work on one event loop: one slice of each in turn, and other tasks in between.

    A client has one line, however much it asks for, and one more for what it works on while others
    wait, as with a lock. What several clients need is in the line of each, so that nobody waits for
    all that another has asked for before.
    """

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[ClientKey, bool], deque[Slice[Any]]] = OrderedDict()
        self._runner: asyncio.Task[None] | None = None

    async def work(self, client_key: ClientKey, slice: Slice[T], *, is_locked: bool = False) -> T:
        """Return the result of a slice that is worked in this line, or in another one before.

        Others wait meanwhile if it `is_locked`.
        """
        self._lines.setdefault((client_key, is_locked), deque()).append(slice)
        if self._runner is None:
            self._runner = asyncio.create_task(self._run(), context=Context())
        slice.waiter_count += 1
        try:
            await asyncio.wait((slice.done,))  # others wait for it, too, if this is cancelled
        finally:
            slice.waiter_count -= 1
        return slice.done.result()

    async def _run(self) -> None:
        try:
            while self._lines:
                line, waiting = self._lines.popitem(last=False)
                slice = waiting.popleft()
                while waiting and not slice.is_needed:
                    slice = waiting.popleft()
                if waiting:
                    self._lines[line] = waiting
                if slice.is_needed:
                    slice.run()
                    await asyncio.sleep(0)
        finally:
            self._runner = None
