"""Count connections by worker, address and identity, limit the rate of requests, and lock keys.

A connection is counted under each of its keys: the key of all connections, the key of its address,
and a key for each identity that it is known by. With several workers the supervisor counts
(`serve_counts`), so that the limits are those of the host. A worker sends it one message for all
that comes in one turn of the event loop; a connect takes 0.3 ms longer for it, and 0.07 ms more of
CPU. When a worker ends, what it holds is released at once. While the supervisor does not answer,
each worker admits its share on its own; when the supervisor is back, every worker sends it what it
holds.

A lock is a count of at most one (`KeyLocks`). Every worker sees the records that are in Kafka, but
not those that another worker is about to write. While a partition has no leader, a client that is
disconnected and repeats its record may have one in flight at each worker, and all of them would be
written: in a measurement, 2 of 10 were. So a worker acquires the key, and if it had to wait, it
looks for the record in the log again. That costs a record with a key 0.3 ms. While the supervisor
is away, the log alone decides. The keys of documents, whose writes may have conditions, are locked
in the same way.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from time import monotonic
from typing import Any, NamedTuple

from gateway.config import Limits as Settings
from gateway.config import Rate
from gateway.core.produce.idempotency import IdempotencyKey
from gateway.web.workers.bus import Bus, SupervisorUnavailable
from gateway.web.workers.relay import Relay, WorkerCounts

log = logging.getLogger(__name__)

BUS_TOPIC = "limits"
LOCK_DELAY_RANGE_S = (0.005, 0.1)  # the first and the longest delay between two requests of a lock
MIN_SWEPT_NAMES = 1024  # remembered names before those whose bucket is full are looked for

MAX_HANDSHAKES = 2000
"""TLS handshakes in progress of all workers together, whatever `connections` allows: 190 MB. One
address has at most half of them, so that no single host keeps the others out."""


class LimitKind(StrEnum):
    """The limit that a key counts towards; every key begins with it."""

    ALL = "connections"
    ADDRESS = "perAddress"
    IDENTITY = "perIdentity"
    RATE = "rate"
    HANDSHAKES = "handshakes"
    HANDSHAKES_OF_ADDRESS = "handshakesPerAddress"
    DESCRIPTORS = "descriptors"
    WRITTEN_KEY = "writtenKey"

    def build_key(self, name: str = "") -> str:
        return f"{self}:{name}"


TOTAL_KEY = LimitKind.ALL.build_key()


class LimitRefusal(NamedTuple):
    """Why a connection or a request is refused, and how long trying again is useless."""

    limit: LimitKind
    retry_after_s: float = 0.0


class GcraLimiter:
    """Limit how often each name may arrive, by a token bucket per name.

    A bucket holds `burst` tokens, and gets one every `interval_s`. Its only state is the time at
    which it will be full again (GCRA, ITU-T I.371).
    """

    def __init__(self, interval_s: float, burst: int) -> None:
        self._interval_s = interval_s
        self._slack_s = (burst - 1) * interval_s
        self._full_at: dict[str, float] = {}
        self._sweep_size = MIN_SWEPT_NAMES

    def __len__(self) -> int:
        return len(self._full_at)

    def register_arrival(self, name: str, now: float) -> float:
        """Return 0 if an arrival is allowed and was counted, else the seconds until it would be."""
        full = max(now, self._full_at.get(name, now))
        wait = full - now - self._slack_s
        if wait > 1e-9:  # rounding errors of the float arithmetic refuse nobody
            return wait
        self._full_at[name] = full + self._interval_s
        if len(self._full_at) > self._sweep_size:
            self._sweep(now)
        return 0.0

    def _sweep(self, now: float) -> None:
        """Forget the names whose bucket is full: a bucket that is not known is full, too."""
        self._full_at = {name: full for name, full in self._full_at.items() if full > now}
        # Waiting until the number has doubled makes a sweep cost O(1) per arrival.
        self._sweep_size = max(MIN_SWEPT_NAMES, 2 * len(self._full_at))


class ConnectionCounts(WorkerCounts[str]):
    """The connections of all workers, or of one, within limits.

    The supervisor owns one for all workers, and each worker owns one of its own.
    """

    def __init__(
        self, max_by_kind: Mapping[LimitKind, int], rate_limiter: GcraLimiter | None = None
    ) -> None:
        """Create empty counts; a kind that `max_by_kind` lacks has no limit."""
        super().__init__()
        self._max_by_kind = max_by_kind
        self._rate_limiter = rate_limiter

    @classmethod
    def from_settings(cls, settings: Settings, worker_count: int = 1) -> ConnectionCounts:
        """Create counts with each worker's share of `listen.limits`, rounded up."""
        limits = {
            LimitKind.ALL: settings.connections,
            LimitKind.ADDRESS: settings.per_address,
            LimitKind.IDENTITY: settings.per_identity,
            LimitKind.WRITTEN_KEY: 1,
            **_build_handshake_limits(settings),
        }
        max_by_kind = {kind: -(-n // worker_count) for kind, n in limits.items() if n is not None}
        return cls(max_by_kind, _create_rate_limiter(settings.rate, settings.burst, worker_count))

    @property
    def total(self) -> int:
        return self.count(TOTAL_KEY)

    def acquire(self, worker: int, keys: Sequence[str], now: float) -> LimitRefusal | None:
        """Count a connection under all of these keys, or return the first limit that refuses it.

        A key of kind RATE holds nothing: it only counts as an arrival.
        """
        for key in keys:
            kind, _, name = key.partition(":")
            if kind == LimitKind.RATE:
                wait = (
                    self._rate_limiter.register_arrival(name, now)
                    if self._rate_limiter is not None
                    else 0.0
                )
                if wait:
                    return LimitRefusal(LimitKind.RATE, wait)
            # A kind without a limit is compared with one more than its count, so it never refuses.
            elif self.count(key) >= self._max_by_kind.get(LimitKind(kind), self.count(key) + 1):
                return LimitRefusal(LimitKind(kind))
        self.add(worker, count_keys(keys))
        return None


def count_keys(keys: Iterable[str]) -> dict[str, int]:
    """Return the counts of a connection: 1 under each key, except under keys of RATE."""
    return {key: 1 for key in keys if not key.startswith(f"{LimitKind.RATE}:")}


def _build_handshake_limits(settings: Settings) -> dict[LimitKind, int]:
    """Return how many TLS handshakes there may be; never more than connections."""
    total = min(settings.connections or MAX_HANDSHAKES, MAX_HANDSHAKES)
    per_address = min(settings.per_address or MAX_HANDSHAKES // 2, total)
    return {LimitKind.HANDSHAKES: total, LimitKind.HANDSHAKES_OF_ADDRESS: per_address}


def _create_rate_limiter(
    rate: Rate | None, burst: int | None, worker_count: int
) -> GcraLimiter | None:
    if rate is None:
        return None
    # Each of several workers gets a share of the rate and, rounded up, of the burst.
    return GcraLimiter(rate.interval * worker_count, -(-(burst or rate.count) // worker_count))


class SharedCounts:
    """The counts of one worker, which it shares with the others of its host.

    `_own_counts` are those of this worker. When several workers share the limits, the supervisor's
    counts decide, and `_own_counts` decide only while it does not answer.
    """

    BUS_TIMEOUT_S = 1.0  # seconds for the supervisor to answer

    def __init__(self, settings: Settings, bus: Bus) -> None:
        self._bus = bus
        self._is_shared = bus.worker_count > 1
        self._own_counts = ConnectionCounts.from_settings(settings, bus.worker_count)
        # What the next message to the supervisor asks for, and what it releases.
        self._pending_requests: list[tuple[Sequence[str], asyncio.Future[LimitRefusal | None]]] = []
        self._released_keys: Counter[str] = Counter()
        self._flush_task: asyncio.Task[None] | None = None  # None while there is nothing to send
        bus.join_callbacks.append(self._on_joined)

    def start_acquiring(
        self, keys: Sequence[str]
    ) -> asyncio.Future[LimitRefusal | None] | LimitRefusal | None:
        """Return why these keys are refused, None if they are acquired, or a future of it."""
        if self._is_shared:
            return self._enqueue_request(keys)
        return self._own_counts.acquire(0, keys, monotonic())

    def acquire_locally(self, keys: Sequence[str]) -> bool:
        return self._own_counts.acquire(0, keys, monotonic()) is None

    async def try_acquire(self, keys: Sequence[str]) -> LimitRefusal | None:
        """Count something under these keys, or return why it is refused."""
        answer = self.start_acquiring(keys)
        if not isinstance(answer, asyncio.Future):
            return answer
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.result() is None:
                # It was admitted, but cancelled before it ran again: nobody else would release it.
                self.release(keys)
            raise

    def release(self, keys: Sequence[str]) -> None:
        self._own_counts.release(0, count_keys(keys))
        if self._is_shared and keys:
            self._released_keys.update(count_keys(keys))
            self._schedule_flush()

    def _enqueue_request(self, keys: Sequence[str]) -> asyncio.Future[LimitRefusal | None]:
        answer: asyncio.Future[LimitRefusal | None] = asyncio.get_running_loop().create_future()
        self._pending_requests.append((keys, answer))
        self._schedule_flush()
        return answer

    def _schedule_flush(self) -> None:
        if self._flush_task is None:
            self._flush_task = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        """Send messages until nothing is left; new requests go with the next one."""
        try:
            while self._pending_requests or self._released_keys:
                # Before the requests are taken: those that come meanwhile go with the same message.
                is_linked = await self._bus.wait_until_linked(self.BUS_TIMEOUT_S)
                requests, self._pending_requests = self._pending_requests, []
                released, self._released_keys = dict(self._released_keys), Counter()
                message = {"gone": released, "take": [keys for keys, _ in requests]}
                answers = await self._call_supervisor(message) if is_linked else None
                for n, (keys, answer) in enumerate(requests):
                    self._resolve_request(keys, answer, None if answers is None else answers[n])
        finally:
            self._flush_task = None

    async def _call_supervisor(self, message: Mapping[str, Any]) -> list[list[Any]] | None:
        """Return the supervisor's answers, or None if it is away.

        Nothing that it missed need be repeated: `_on_joined` sends it all that is held here.
        """
        try:
            answers: list[list[Any]] = await self._bus.call_supervisor(
                BUS_TOPIC, message, timeout_s=self.BUS_TIMEOUT_S
            )
        except SupervisorUnavailable as exc:
            log.warning("this worker admits its share of connections by itself: %s", exc)
            # An answer that is only late would count these connections twice: here and there. On a
            # new connection the supervisor replaces its counts by what this worker holds.
            self._bus.abort_link()
            return None
        return answers

    def _resolve_request(
        self,
        keys: Sequence[str],
        future: asyncio.Future[LimitRefusal | None],
        response: list[Any] | None,
    ) -> None:
        """Count a connection if it is admitted, and resolve its future.

        Args:
            response: The fields of a LimitRefusal; empty if the supervisor admitted the connection;
                None if it did not answer, and this worker decides.
        """
        if response is None:
            refusal = self._own_counts.acquire(0, keys, monotonic())
        else:
            refusal = LimitRefusal(LimitKind(response[0]), response[1]) if response else None
            self._own_counts.add(0, {} if response else count_keys(keys))
        if not future.cancelled():
            future.set_result(refusal)
        elif refusal is None:  # the client left while the supervisor was asked
            self.release(keys)

    def _on_joined(self) -> None:
        """Send the supervisor all that is held here, which replaces its counts of this worker."""
        self._released_keys.clear()
        self._bus.notify_supervisor(BUS_TOPIC, {"held": dict(self._own_counts.get_held(0))})


def serve_counts(relay: Relay, settings: Settings) -> ConnectionCounts:
    """Let a supervisor count for its workers, and return the counts of all workers."""
    counts = ConnectionCounts.from_settings(settings)

    def handle_call(worker: int, message: Mapping[str, Any]) -> list[Sequence[Any]] | None:
        if "held" in message:
            counts.remove_worker(worker)
            counts.add(worker, message["held"])
            return None
        counts.release(worker, message["gone"])
        return [counts.acquire(worker, keys, monotonic()) or () for keys in message["take"]]

    relay.add_handler(BUS_TOPIC, handle_call)
    relay.leave_callbacks.append(counts.remove_worker)
    return counts


class KeyLocks:
    """The locks of idempotency keys that one worker of several holds, or is asking for."""

    def __init__(self, counts: SharedCounts) -> None:
        self._counts = counts

    async def acquire(self, key: IdempotencyKey) -> bool:
        """Wait for a key; return whether another worker held it and may have written its record."""
        had_to_wait, delay_s = False, LOCK_DELAY_RANGE_S[0]
        while await self._counts.try_acquire([_name_lock(key)]) is not None:
            had_to_wait = True
            await asyncio.sleep(random.uniform(delay_s / 2, delay_s))
            delay_s = min(2 * delay_s, LOCK_DELAY_RANGE_S[1])
        return had_to_wait

    def release(self, key: IdempotencyKey) -> None:
        """Release a key; that of another worker stays locked."""
        self._counts.release([_name_lock(key)])


def _name_lock(key: IdempotencyKey) -> str:
    return LimitKind.WRITTEN_KEY.build_key(repr(tuple(key)))
