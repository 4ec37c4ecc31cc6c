"""Limit the clients that are connected at once, and how often one address sends requests.

Connections are limited in total and per address, from accept to close (`PortLimits`), and per
identity. Requests count while they run, under keys that their connection does not count under:
their identity, the address that a trusted proxy gives, and everything on another ASGI server.

A connection above a limit stays for one request, which is answered as its client understands it: a
stream ends as busy, an exchange gets 503 or 429, a page is sent. So many may stay as there may be
TLS handshakes; others are closed at once.

A stream over HTTP is a request of its own, which `listen.limits.rate` counts for the address it
comes from. On a WebSocket, each `subscribe`, `change`, `produce` and `token` asks guards, too. The
first FREE_ATTEMPTS messages of a socket are not counted, so that a page may open as many streams as
one socket may carry; each one after them counts as a request of its address. A socket whose client
sent a wrong token has no free attempts left.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, ip_address, ip_network
from math import inf
from time import monotonic
from typing import TypeAlias

from starlette.types import Scope

from gateway.config import Limits as Settings
from gateway.core.caches import cache_short
from gateway.errors import Busy, RequestError
from gateway.web.access import NO_GRANTS, Granted
from gateway.web.workers.bus import Bus

from .shared_counts import LimitKind, LimitRefusal, SharedCounts

log = logging.getLogger(__name__)

FULL_PERIOD_S = 3.0  # seconds after a refusal in which the gateway says that it is full
QUIET_PERIOD_S = 60.0  # seconds without a refusal after which the next one is logged again
# File descriptors that clients leave free: an eighth of all, within these bounds.
MIN_RESERVED_DESCRIPTORS, MAX_RESERVED_DESCRIPTORS = 16, 256
RETRY_AFTER_RANGE_S = (3.0, 10.0)  # seconds, at random, until a refused client may try again

FREE_ATTEMPTS = 100  # messages of one socket; as many as it may have streams
MAX_WRONG_TOKENS = 16  # wrong tokens in a row before the socket is closed
MAX_RATE_LIMITED_IN_A_ROW = 16  # messages beyond the rate before the socket is closed

RATE_LIMITED_MESSAGE = (
    "your address asks more often than it may; wait for so many seconds as `retryAfter` says"
)

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

OPEN_CONNECTION = "gateway.open_connection"
"""Name of the ASGI extension whose value is the `OpenConnection` that a request came by."""

ReleaseSlot: TypeAlias = Callable[[], None]


class LimitReached(Busy):
    """A limit is reached: 503 for limits of all clients, 429 for those of one client."""

    def __init__(self, refusal: LimitRefusal) -> None:
        self.limit = refusal.limit
        status, detail = _REFUSALS[refusal.limit]
        super().__init__(
            status, detail, retry_after=refusal.retry_after_s + random.uniform(*RETRY_AFTER_RANGE_S)
        )


class ConnectionSlot:
    """One connection that is counted.

    The owner of the connection calls it when the connection ends. The second call does nothing.
    """

    __slots__ = ("_identifying", "_keys", "_limits")

    def __init__(self, limits: Limits | None, keys: Sequence[str] = ()) -> None:
        self._identifying: asyncio.Lock | None = None
        self._limits = limits
        self._keys = keys

    def __call__(self) -> None:
        limits, keys = self._limits, self._keys
        self._limits, self._keys = None, ()
        if limits is not None:
            limits.release(keys)

    async def identify(self, granted: Granted) -> None:
        """Count the connection as one of this client's, too, or raise `LimitReached`.

        A client of `/ws` is not known when it connects, but by its streams and records. Those that
        come at once count once.
        """
        limits = self._limits
        keys = [] if limits is None else limits.get_identity_keys(granted)
        if limits is None or not keys or keys[0] in self._keys:
            return
        self._identifying = self._identifying or asyncio.Lock()
        async with self._identifying:
            if keys[0] in self._keys:
                return
            await limits.acquire(keys)
            if self._limits is None:  # the connection ended while the supervisor was asked
                limits.release(keys)
            else:
                self._keys = (*self._keys, *keys)


class OpenConnection(ConnectionSlot):
    """A connection that counts from accept to close, when its protocol calls it.

    `refusal` says why it is one too many; it is None while the supervisor is asked.
    """

    __slots__ = ("_answer", "_on_refused", "refusal")

    def __init__(
        self,
        limits: Limits,
        keys: Sequence[str],
        refused_keys: Sequence[str],
        on_refused: Callable[[bool], None],
    ) -> None:
        """Count a connection, or under `refused_keys` if it is refused.

        `on_refused` is called then, also within this call, with whether it may stay for one
        request.
        """
        super().__init__(limits)
        self.refusal: LimitRefusal | None = None
        self._on_refused: Callable[[bool], None] | None = on_refused
        resolve = partial(self._resolve, limits, keys, refused_keys)
        answer = limits.start_acquiring(keys)
        self._answer = answer if isinstance(answer, asyncio.Future) else None
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(lambda future: resolve(future.result()))
        else:
            resolve(answer)

    def _resolve(
        self,
        limits: Limits,
        keys: Sequence[str],
        refused_keys: Sequence[str],
        refusal: LimitRefusal | None,
    ) -> None:
        is_lost, on_refused = self._limits is None, self._on_refused
        self._answer = self._on_refused = None
        self.refusal = refusal
        if refusal is not None:
            keys = () if is_lost or not limits.acquire_locally(refused_keys) else refused_keys
            if not (is_lost or keys):
                limits.count_refusal(refusal)
            if on_refused is not None:
                on_refused(bool(keys))
        if is_lost:
            limits.release(keys)
        else:
            self._keys = keys

    def hand_over(self) -> OpenConnection:
        """Return this for another protocol of the connection; `on_refused` is not called."""
        self._on_refused = None
        return self

    async def get_keys(self) -> Sequence[str]:
        """Return the keys that count the connection; raise `LimitReached` if it is refused."""
        if self._answer is not None:
            await asyncio.wait([self._answer])
        if self.refusal is not None:
            if self._limits is not None:
                self._limits.count_refusal(self.refusal)
            raise LimitReached(self.refusal)
        return self._keys


class Limits(SharedCounts):
    """The limits of `listen.limits`, as one worker sees them; one per process."""

    def __init__(self, settings: Settings, bus: Bus) -> None:
        super().__init__(settings, bus)
        self._settings = settings
        connection_limits = (settings.connections, settings.per_address, settings.per_identity)
        self._is_unlimited = not any(connection_limits)
        self.counts_connections = bool(settings.connections or settings.per_address)
        self.refused_counts: Counter[str] = Counter()  # refused connections, by the limit
        self._refused_at: dict[LimitKind, float] = {}  # when a limit last refused one

    @property
    def connection_count(self) -> int:
        """The number of this worker's connections; 0 if there are no limits."""
        return self._own_counts.total

    @property
    def is_full(self) -> bool:
        """Whether the limit of all connections has refused a client in the last seconds."""
        return monotonic() - self._refused_at.get(LimitKind.ALL, -inf) < FULL_PERIOD_S

    async def check_rate(self, scope: Scope) -> None:
        """Count a request, before anything is known of its client but the address."""
        if self._settings.rate is None:
            return
        refusal = await self._count_request(get_client_address(scope))
        if refusal is not None:
            raise LimitReached(refusal)

    async def count_attempt(self, address: str) -> float | None:
        """Count one more request of an address; return the seconds to wait if it is too many.

        Requests that are counted apart from those of clients have an address with a prefix.
        """
        refusal = await self._count_request(address)
        return None if refusal is None else refusal.retry_after_s

    async def acquire_slot(self, scope: Scope, granted: Granted = NO_GRANTS) -> ConnectionSlot:
        """Count a stream, socket or exchange, or raise `LimitReached`; call the slot at its end.

        Keys that its connection counts under are not counted again.
        """
        if self._is_unlimited:
            return UNCOUNTED_SLOT
        connection: OpenConnection | None = scope.get("extensions", {}).get(OPEN_CONNECTION)
        counted_keys = () if connection is None else await connection.get_keys()
        address = get_client_address(scope)
        keys = [*self.build_keys(address), *self.get_identity_keys(granted)]
        keys = [key for key in keys if key not in counted_keys]
        if keys:
            await self.acquire(keys)
        return ConnectionSlot(self, tuple(keys))

    def build_keys(self, address: str, port: str = "") -> list[str]:
        """Return the keys of all connections and of one address; an empty one does not count."""
        keys = [LimitKind.ALL.build_key(port)]
        if self._settings.per_address is not None and address:
            keys.append(LimitKind.ADDRESS.build_key(f"{port} {address}".lstrip()))
        return keys

    async def reserve_slot(self, keys: Sequence[str]) -> ConnectionSlot:
        """Count something under these keys that is no connection yet, such as a TLS handshake.

        A refusal is raised as `LimitReached`, and not counted among the refused connections.
        """
        refusal = await self.try_acquire(keys)
        if refusal is not None:
            raise LimitReached(refusal)
        return ConnectionSlot(self, tuple(keys))

    def get_identity_keys(self, granted: Granted) -> list[str]:
        """Return the key of the client's identity; none if identities have no limit.

        If several guards admitted the client, the identity is the one of the first guard.
        """
        if self._settings.per_identity is None or not granted:
            return []
        return [LimitKind.IDENTITY.build_key(granted.client_key)]

    async def acquire(self, keys: Sequence[str]) -> None:
        refusal = await self._acquire_counting_refusals(keys)
        if refusal is not None:
            raise LimitReached(refusal)

    async def _count_request(self, address: str) -> LimitRefusal | None:
        """Return why a request of this address is refused; None if it is allowed and counted."""
        if self._settings.rate is None or not address:
            return None
        return await self._acquire_counting_refusals([LimitKind.RATE.build_key(address)])

    async def _acquire_counting_refusals(self, keys: Sequence[str]) -> LimitRefusal | None:
        refusal = await self.try_acquire(keys)
        if refusal is not None:
            self.count_refusal(refusal)
        return refusal

    def count_refusal(self, refusal: LimitRefusal) -> None:
        """Count a refusal in `refused_counts`, and log the first one of its limit for a while."""
        self.refused_counts[refusal.limit] += 1
        now = monotonic()
        if now - self._refused_at.get(refusal.limit, -inf) > QUIET_PERIOD_S:
            is_own = refusal.limit is not LimitKind.DESCRIPTORS
            log.warning(
                "clients are refused by %s; logged again after %g s without any",
                f"listen.limits.{refusal.limit}"
                if is_own
                else "the limit of open files, ulimit -n",
                QUIET_PERIOD_S,
            )
        self._refused_at[refusal.limit] = now


class PortLimits:
    """The limits of the connections and TLS handshakes of one port, which has its own counts."""

    def __init__(
        self, limits: Limits, port: str = "", is_proxy: Callable[[str], bool] = lambda peer: False
    ) -> None:
        """Create the limits of a port.

        A proxy is exempt from the limit of one address, as many clients connect through it.
        """
        self._limits = limits
        self._port = port
        self._is_proxy = is_proxy
        self._descriptor_end = _compute_descriptor_end()

    def leaves_descriptors(self, descriptor: int) -> bool:
        """Return whether there are enough descriptors besides this one, of a new connection.

        Some are kept for connections to Kafka and for the port of operators: as many clients as the
        system allows would cut the others off from Kafka. The system gives out the lowest
        descriptor that is free, so that its number says how many are left at most.
        """
        if descriptor < self._descriptor_end or self._port:
            return True
        self._limits.count_refusal(LimitRefusal(LimitKind.DESCRIPTORS))
        return False

    def open_connection(
        self, peer: str, on_refused: Callable[[bool], None]
    ) -> OpenConnection | None:
        """Count a connection, with an empty `peer` on a Unix socket; None without limits."""
        limits = self._limits
        if not limits.counts_connections:
            return None
        keys = limits.build_keys(self._get_address(peer), self._port)
        refused_keys = self._build_handshake_keys(peer, f"refused {self._port}")
        return OpenConnection(limits, keys, refused_keys, on_refused)

    async def reserve_handshake(self, peer: str) -> ConnectionSlot:
        return await self._limits.reserve_slot(self._build_handshake_keys(peer, self._port))

    def _build_handshake_keys(self, peer: str, name: str) -> list[str]:
        keys = [LimitKind.HANDSHAKES.build_key(name)]
        if address := self._get_address(peer):
            keys.append(LimitKind.HANDSHAKES_OF_ADDRESS.build_key(f"{name} {address}"))
        return keys

    def _get_address(self, peer: str) -> str:
        """Return the address to count under; empty for a proxy."""
        return "" if not peer or self._is_proxy(peer) else normalize_address(peer)


def _compute_descriptor_end() -> float:
    """Return the lowest descriptor that is not for clients."""
    if sys.platform == "win32":
        return inf
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return inf
    return limit - min(MAX_RESERVED_DESCRIPTORS, max(MIN_RESERVED_DESCRIPTORS, limit // 8))


def get_client_address(scope: Scope) -> str:
    client = scope.get("client")
    return normalize_address(client[0]) if client else ""


@cache_short(4096)
def normalize_address(host: str) -> str:
    """Return the text that counts as one address: of IPv6 the /64 that one subscriber gets."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((int(address), 64), strict=False))


class RateLimited(RequestError):
    def __init__(self, retry_after: float | None) -> None:
        super().__init__(429, "Rate limited", RATE_LIMITED_MESSAGE, retry_after=retry_after)


@dataclass(eq=False, slots=True)
class Attempts:
    """The attempts of one socket. Owned by the socket's session."""

    _limits: Limits
    _address: str
    _free_left: int = FREE_ATTEMPTS
    _rate_limited_in_a_row: int = 0  # messages in a row that were beyond the rate
    _wrong_tokens: int = 0  # refused tokens since a guard accepted one
    _has_unproven_token: bool = False  # the client sent a token that no guard has accepted yet

    async def count_attempt(self) -> None:
        """Count one message before any guard is asked, or raise `RateLimited`."""
        if self._free_left:
            self._free_left -= 1
            return
        wait = await self._limits.count_attempt(self._address)
        if wait is not None:
            self._rate_limited_in_a_row += 1
            raise RateLimited(wait)
        self._rate_limited_in_a_row = 0

    def note_token(self) -> None:
        """Record that the client sent another token, which no guard has checked yet."""
        self._has_unproven_token = True

    def note_admitted(self) -> None:
        self._has_unproven_token = False
        self._wrong_tokens = 0

    def note_refused(self, status: int) -> None:
        # Credentials that came with the handshake cannot be changed on a socket, so a client that
        # is refused with those is not guessing tokens.
        if status == 401 and self._has_unproven_token:
            self._wrong_tokens += 1
            self._free_left = 0

    @property
    def has_guessed(self) -> bool:
        """Whether the client tries one wrong token after the other."""
        return self._wrong_tokens >= MAX_WRONG_TOKENS

    @property
    def is_flooding(self) -> bool:
        """Whether the client keeps sending although it was asked to wait."""
        return self._rate_limited_in_a_row >= MAX_RATE_LIMITED_IN_A_ROW


UNCOUNTED_SLOT = ConnectionSlot(None)
"""The slot of a connection that need not be counted."""
