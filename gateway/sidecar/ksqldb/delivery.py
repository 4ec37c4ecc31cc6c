"""Rows of a query to the back end: batch by batch, in order, one at a time.

A back end that is away (refuses connections, is too slow, answers 401, 404, 429 or 5xx) is asked
for ever: no row is skipped for its fault, and meanwhile the query is held back at ksqlDB. Of an
answer only the status counts, but all of it must come in time. What the back end
says about the rows themselves (400, 409, 413, 422) is tried again some times, then the batch is
halved until the row that it means stands alone; that one is logged, counted and left out, as there
are no dead letters of rows.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence

from gateway.core.delivery.verdict import BackendUnavailable
from gateway.core.log.recovery import Backoff, Cause
from gateway.sidecar.reactive.backend import BackendResponse

log = logging.getLogger(__name__)

REJECTED_STATUSES = frozenset({400, 409, 413, 422})
MAX_LOGGED_BYTES = 200  # bytes of a row, or of an answer, that the log has

PostBatch = Callable[[bytes, str], Awaitable[BackendResponse | BackendUnavailable]]


class RowBatcher:
    """Rows on their way, as JSON.

    rows, size (bytes): of a batch. linger: seconds that a row waits for others.
    No more wait than are in a batch, and one row: `put` waits then, and whoever reads the query
    with it.
    """

    def __init__(self, rows: int, size: int, linger: float) -> None:
        self._max_rows = rows
        self._max_bytes = size
        self._linger = linger
        self._rows: deque[tuple[float, bytes]] = deque()
        self._bytes = 0  # of those that wait, as they are counted for a batch
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_ended = False

    async def put(self, row: bytes) -> None:
        while self._is_full():
            await self._wait_for_change(None)
        self._rows.append((_now(), row))
        self._bytes += len(row) + 1
        self._notify_change()

    def end(self) -> None:
        """No row comes any more; those that wait are still taken."""
        self._is_ended = True
        self._notify_change()

    async def take_batch(self) -> Sequence[bytes]:
        """The next batch, once it is full or its first row has waited; none at the end."""
        while not self._rows:
            if self._is_ended:
                return ()
            await self._wait_for_change(None)
        due = self._rows[0][0] + self._linger
        while not self._is_ended and not self._is_full() and _now() < due:
            await self._wait_for_change(due - _now())
        taken = [self._rows.popleft()[1] for _ in range(self._count_batch())]
        self._bytes -= sum(len(row) + 1 for row in taken)
        self._notify_change()
        return taken

    def _is_full(self) -> bool:
        """Return whether a batch is there, by rows or by bytes: one more row would wait for it."""
        return len(self._rows) >= self._max_rows or self._bytes > self._max_bytes

    def _count_batch(self) -> int:
        """How many of those that wait are one batch; one row at least, however large."""
        size = 0
        for index, (_, row) in enumerate(self._rows):
            size += len(row) + 1
            if index and (size > self._max_bytes or index >= self._max_rows):
                return index
        return len(self._rows)

    async def _wait_for_change(self, timeout_s: float | None) -> None:
        # One future for each that waits: an Event that both sides clear loses a change that comes
        # between the clearing and the waiting.
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)

    def _notify_change(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class RowDelivery:
    """See the module.

    post: a body to the back end, with the id that it has at every attempt.
    retries: of a batch that is refused.
    outcomes: rows by what became of them (`delivered`, `dropped`). away: why the back end cannot
    be had now, None while it can.
    """

    def __init__(
        self, name: str, post: PostBatch, retries: int, initial: float, max: float
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self.failure: str | None = None
        self._name = name
        self._post = post
        self._retries = retries
        self._initial = initial
        self._max = max
        self._has_skipped = False

    async def run(self, batches: RowBatcher) -> None:
        """Until the rows are over."""
        while rows := await batches.take_batch():
            await self._deliver(rows)

    def skip_row(self, why: str) -> None:
        """Count a row that cannot be handed on; log the first one of the query."""
        self.outcomes["dropped"] += 1
        if not self._has_skipped:
            self._has_skipped = True
            what = "rows that cannot be handed on are passed over and counted"
            log.error("query %s: %s; the first: %s", self._name, what, why)

    async def _deliver(self, rows: Sequence[bytes]) -> None:
        refusal = await self._post_until_answered(rows)
        if refusal is None:
            self.outcomes["delivered"] += len(rows)
        elif len(rows) > 1:
            middle = len(rows) // 2
            await self._deliver(rows[:middle])
            await self._deliver(rows[middle:])
        else:
            self.outcomes["dropped"] += 1
            shown = rows[0][:MAX_LOGGED_BYTES].decode(errors="replace")
            log.error("query %s: the back end refuses a row (%s): %s", self._name, refusal, shown)

    async def _post_until_answered(self, rows: Sequence[bytes]) -> str | None:
        """None once the back end has them, else why it does not want them."""
        backoff = Backoff(self._max, random.random, self._initial)
        body, id, refused = b"[" + b",".join(rows) + b"]", str(uuid.uuid4()), 0
        while True:
            status, why, least = await self._post_batch(body, id)
            if 200 <= status < 300:
                self._on_available()
                return None
            if status in REJECTED_STATUSES:
                self._on_available()
                refused += 1
                if refused > self._retries:
                    return why
            else:
                self._on_unavailable(why)
            await asyncio.sleep(max(least, backoff.next_delay(Cause.CONNECTION)))

    async def _post_batch(self, body: bytes, id: str) -> tuple[int, str, float]:
        """Its status (0: none), why it is no good, and after which time it wants to be asked."""
        said = await self._post(body, id)
        if isinstance(said, BackendUnavailable):
            return 0, said.reason, said.retry_after
        why = f"{said.status} {said.body[:MAX_LOGGED_BYTES].decode(errors='replace')}".strip()
        return said.status, why, said.retry_after

    def _on_unavailable(self, why: str) -> None:
        if self.failure is None:
            log.warning("query %s: the back end is away (%s); its rows wait", self._name, why)
        self.failure = why

    def _on_available(self) -> None:
        if self.failure is not None:
            log.info("query %s: the back end is back", self._name)
        self.failure = None


def _now() -> float:
    return asyncio.get_running_loop().time()
