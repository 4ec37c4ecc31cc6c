"""How many clients may be connected at once: in all, from one address, and of one identity; and
how often one address may come.

With several workers the supervisor counts (`Ledger`), so that the limits are those of the host.
It is asked once for all that connect in one turn of the loop; a connect takes 0.3 ms longer for
it, and 0.07 ms more of CPU. What a worker that ended had is free at once. While the supervisor
does not answer, each worker admits its share by itself; when it is back, it is told what everyone
holds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, ip_address, ip_network
from time import monotonic
from typing import Any, TypeAlias

from starlette.types import Scope

from gateway.config import Limits as Settings
from gateway.core.short_cache import cache_short
from gateway.errors import Busy
from gateway.web.access import NO_GRANTS, Granted
from gateway.web.workers.bus import Bus, SupervisorUnavailable
from gateway.web.workers.relay import Relay

from .connection_counts import TOTAL_KEY, ConnectionCounts, LimitKind, LimitRefusal, count_keys

log = logging.getLogger(__name__)

BUS_TOPIC = "limits"
BUS_TIMEOUT_S = 1.0  # seconds for the supervisor to answer
RETRY_AFTER_RANGE_S = (3.0, 10.0)  # seconds until one who was refused may try again

_REFUSALS = {
    LimitKind.ALL: (503, "the gateway has as many clients as it takes; come back later"),
    LimitKind.ADDRESS: (429, "your address has as many connections as it may; close one"),
    LimitKind.IDENTITY: (429, "you have as many connections as you may; close one"),
    LimitKind.RATE: (429, "your address asks more often than it may; come back later"),
    LimitKind.HANDSHAKES: (
        503,
        "the gateway has as many TLS handshakes as it takes; come back later",
    ),
    LimitKind.HANDSHAKES_OF_ADDRESS: (429, "your address has as many TLS handshakes as it may"),
}

ReleaseSlot: TypeAlias = Callable[[], None]


class LimitReached(Busy):
    """One limit is reached: 503 for that of all, 429 for those of one client."""

    def __init__(self, refusal: LimitRefusal) -> None:
        self.limit = refusal.limit
        status, detail = _REFUSALS[refusal.limit]
        super().__init__(
            status, detail, retry_after=refusal.retry_after_s + random.uniform(*RETRY_AFTER_RANGE_S)
        )


class ConnectionSlot:
    """One connection that is counted; to be called when it is over."""

    __slots__ = ("_keys", "_limits")

    def __init__(self, limits: Limits | None, keys: Sequence[str] = ()) -> None:
        self._limits = limits
        self._keys = keys

    def __call__(self) -> None:
        limits, keys = self._limits, self._keys
        self._limits, self._keys = None, ()
        if limits is not None:
            limits.release(keys)

    async def identify(self, granted: Granted) -> None:
        """It is one of this client's, too: who comes to `/ws` is known by its streams only. Raises
        Busy."""
        limits = self._limits
        keys = [] if limits is None else limits.get_identity_keys(granted)
        if limits is None or not keys or keys[0] in self._keys:
            return
        await limits.acquire(keys)
        if self._limits is None:  # it was over meanwhile
            limits.release(keys)
        else:
            self._keys = (*self._keys, *keys)


class Limits:
    """The limits of `listen.limits`, as one worker sees them."""

    def __init__(self, settings: Settings, bus: Bus) -> None:
        self._bus = bus
        self._settings = settings
        at_once = (settings.connections, settings.per_address, settings.per_identity)
        self._is_unlimited = not any(at_once)
        self._is_shared = bus.worker_count > 1
        self._own_counts = ConnectionCounts.from_settings(settings, bus.worker_count)
        self.refused_counts: Counter[str] = Counter()  # connections, by what kept them out
        self._pending_requests: list[tuple[Sequence[str], asyncio.Future[LimitRefusal | None]]] = []
        self._released_keys: Counter[str] = Counter()
        self._flush_task: asyncio.Task[None] | None = None
        bus.join_callbacks.append(self._on_joined)

    @property
    def connection_count(self) -> int:
        """Connections of this worker; 0 where there are no limits."""
        return self._own_counts.total

    async def check_rate(self, scope: Scope) -> None:
        """Somebody asks for something; before it is known who that is. Raises Busy if the address
        does so too often."""
        if self._settings.rate is None:
            return
        refused = await self._count_request(get_client_address(scope))
        if refused is not None:
            raise LimitReached(refused)

    async def count_attempt(self, address: str) -> float | None:
        """Count one more request of an address, such as a message of a socket that asks to be let
        in. Returns the seconds to wait where that is too often. address: as `source` has it; what
        counts by itself has a prefix."""
        refused = await self._count_request(address)
        return None if refused is None else refused.retry_after_s

    async def acquire_slot(self, scope: Scope, granted: Granted = NO_GRANTS) -> ConnectionSlot:
        """Count one connection. Raises Busy."""
        if self._is_unlimited:
            return UNCOUNTED_SLOT
        keys = [TOTAL_KEY]
        if self._settings.per_address is not None and (address := get_client_address(scope)):
            keys.append(LimitKind.ADDRESS.build_key(address))
        keys += self.get_identity_keys(granted)
        await self.acquire(keys)
        return ConnectionSlot(self, tuple(keys))

    async def reserve_slot(self, keys: Sequence[str]) -> ConnectionSlot:
        """Return a place under each of these keys for what is no connection yet.

        Raises:
            LimitReached: One of them is full. It is not counted among the refused connections.
        """
        refused = await self._acquire_keys(keys)
        if refused is not None:
            raise LimitReached(refused)
        return ConnectionSlot(self, tuple(keys))

    def get_identity_keys(self, granted: Granted) -> list[str]:
        """Of who it is for the first guard; none where that does not count."""
        guard = next(iter(granted), None) if self._settings.per_identity is not None else None
        return (
            []
            if guard is None
            else [LimitKind.IDENTITY.build_key(f"{guard}:{granted[guard].identity}")]
        )

    async def acquire(self, keys: Sequence[str]) -> None:
        """A place under each of these, or under none. Raises Busy."""
        refused = await self._acquire_counting_refusals(keys)
        if refused is not None:
            raise LimitReached(refused)

    async def _count_request(self, address: str) -> LimitRefusal | None:
        if self._settings.rate is None or not address:
            return None
        return await self._acquire_counting_refusals([LimitKind.RATE.build_key(address)])

    async def _acquire_counting_refusals(self, keys: Sequence[str]) -> LimitRefusal | None:
        refused = await self._acquire_keys(keys)
        if refused is not None:
            self.refused_counts[refused.limit] += 1
        return refused

    async def _acquire_keys(self, keys: Sequence[str]) -> LimitRefusal | None:
        if self._is_shared:
            return await self._request_keys(keys)
        return self._own_counts.acquire(0, keys, monotonic())

    def release(self, keys: Sequence[str]) -> None:
        self._own_counts.release(0, count_keys(keys))
        if self._is_shared:
            self._released_keys.update(count_keys(keys))
            self._schedule_flush()

    async def _request_keys(self, keys: Sequence[str]) -> LimitRefusal | None:
        """The supervisor, with all others of this turn of the loop."""
        answer: asyncio.Future[LimitRefusal | None] = asyncio.get_running_loop().create_future()
        self._pending_requests.append((keys, answer))
        self._schedule_flush()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.result() is None:
                self.release(keys)  # let in, and gone before it heard of it
            raise

    def _schedule_flush(self) -> None:
        if self._flush_task is None:
            self._flush_task = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        """Until nothing is left to say; what comes up meanwhile goes with the next message."""
        try:
            while self._pending_requests or self._released_keys:
                linked = await self._bus.wait_until_linked(BUS_TIMEOUT_S)
                asking, self._pending_requests = self._pending_requests, []
                gone, self._released_keys = dict(self._released_keys), Counter()
                told = {"gone": gone, "take": [keys for keys, _ in asking]}
                answers = await self._call_supervisor(told) if linked else None
                for n, (keys, answer) in enumerate(asking):
                    self._resolve_request(keys, answer, None if answers is None else answers[n])
        finally:
            self._flush_task = None

    async def _call_supervisor(self, message: Mapping[str, Any]) -> list[list[Any]] | None:
        """None if the supervisor is away: it is told what is held here when it is back."""
        try:
            answers: list[list[Any]] = await self._bus.call_supervisor(
                BUS_TOPIC, message, timeout_s=BUS_TIMEOUT_S
            )
        except SupervisorUnavailable as exc:
            log.warning("this worker admits its share of connections by itself: %s", exc)
            self._bus.abort_link()  # or an answer that is only late would count them twice
            return None
        return answers

    def _resolve_request(
        self,
        keys: Sequence[str],
        future: asyncio.Future[LimitRefusal | None],
        response: list[Any] | None,
    ) -> None:
        """said: what refuses it, or nothing; None where nobody answered."""
        if response is None:
            refused = self._own_counts.acquire(0, keys, monotonic())
        else:
            refused = LimitRefusal(LimitKind(response[0]), response[1]) if response else None
            self._own_counts.add(0, {} if response else count_keys(keys))
        if not future.cancelled():
            future.set_result(refused)
        elif refused is None:
            self.release(keys)

    def _on_joined(self) -> None:
        """The supervisor is there, or there again: what is held here is all that counts."""
        self._released_keys.clear()
        self._bus.notify_supervisor(BUS_TOPIC, {"held": dict(self._own_counts.get_held(0))})


def serve_limits(relay: Relay, settings: Settings) -> ConnectionCounts:
    """Let a supervisor count for its workers."""
    ledger = ConnectionCounts.from_settings(settings)

    def handle_call(worker: int, message: Mapping[str, Any]) -> list[Sequence[Any]] | None:
        if "held" in message:
            ledger.remove_worker(worker)
            ledger.add(worker, message["held"])
            return None
        ledger.release(worker, message["gone"])
        return [ledger.acquire(worker, keys, monotonic()) or () for keys in message["take"]]

    relay.add_handler(BUS_TOPIC, handle_call)
    relay.leave_callbacks.append(ledger.remove_worker)
    return ledger


def get_client_address(scope: Scope) -> str:
    """Where a connection comes from; empty where that is not known."""
    client = scope.get("client")
    return normalize_address(client[0]) if client else ""


@cache_short(4096)
def normalize_address(host: str) -> str:
    """What counts as one address: of IPv6 the /64, which is what one subscriber is given."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((int(address), 64), strict=False))


UNCOUNTED_SLOT = ConnectionSlot(None)
"""Of a connection that need not be counted."""
