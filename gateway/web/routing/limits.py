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
from gateway.web.access import NOBODY, Granted
from gateway.web.workers.bus import Away, Bus
from gateway.web.workers.relay import Relay

from .ledger import EVERY, Full, Ledger, Refused, places

log = logging.getLogger(__name__)

TOPIC = "limits"
PATIENCE = 1.0  # seconds for the supervisor to answer
AGAIN = (3.0, 10.0)  # seconds until one who was refused may try again

_TOLD = {
    Full.ALL: (503, "the gateway has as many clients as it takes; come back later"),
    Full.ADDRESS: (429, "your address has as many connections as it may; close one"),
    Full.IDENTITY: (429, "you have as many connections as you may; close one"),
    Full.RATE: (429, "your address asks more often than it may; come back later"),
    Full.HANDSHAKES: (503, "the gateway has as many TLS handshakes as it takes; come back later"),
    Full.HANDSHAKES_OF_ADDRESS: (429, "your address has as many TLS handshakes as it may"),
}

Leave: TypeAlias = Callable[[], None]


class LimitReached(Busy):
    """One limit is reached: 503 for that of all, 429 for those of one client."""

    def __init__(self, refused: Refused) -> None:
        self.full = refused.full
        status, detail = _TOLD[refused.full]
        super().__init__(status, detail, retry_after=refused.wait + random.uniform(*AGAIN))


class Place:
    """One connection that is counted; to be called when it is over."""

    __slots__ = ("_keys", "_limits")

    def __init__(self, limits: Limits | None, keys: Sequence[str] = ()) -> None:
        self._limits = limits
        self._keys = keys

    def __call__(self) -> None:
        limits, keys = self._limits, self._keys
        self._limits, self._keys = None, ()
        if limits is not None:
            limits.leave(keys)

    async def identify(self, granted: Granted) -> None:
        """It is one of this client's, too: who comes to `/ws` is known by its streams only. Raises
        Busy."""
        limits = self._limits
        keys = [] if limits is None else limits.keys_of(granted)
        if limits is None or not keys or keys[0] in self._keys:
            return
        await limits.take(keys)
        if self._limits is None:  # it was over meanwhile
            limits.leave(keys)
        else:
            self._keys = (*self._keys, *keys)


class Limits:
    """The limits of `listen.limits`, as one worker sees them."""

    def __init__(self, settings: Settings, bus: Bus) -> None:
        self._bus = bus
        self._settings = settings
        at_once = (settings.connections, settings.per_address, settings.per_identity)
        self._unlimited = not any(at_once)
        self._shared = bus.workers > 1
        self._own = Ledger.of(settings, bus.workers)
        self.refused: Counter[str] = Counter()  # connections, by what kept them out
        self._asking: list[tuple[Sequence[str], asyncio.Future[Refused | None]]] = []
        self._gone: Counter[str] = Counter()
        self._turn: asyncio.Task[None] | None = None
        bus.joined.append(self._joined)

    @property
    def held(self) -> int:
        """Connections of this worker; 0 where there are no limits."""
        return self._own.total

    async def arrive(self, scope: Scope) -> None:
        """Somebody asks for something; before it is known who that is. Raises Busy if the address
        does so too often."""
        if self._settings.rate is None:
            return
        refused = await self._attempt(address_of(scope))
        if refused is not None:
            raise LimitReached(refused)

    async def attempt(self, address: str) -> float | None:
        """Count one more request of an address, such as a message of a socket that asks to be let
        in. Returns the seconds to wait where that is too often. address: as `source` has it; what
        counts by itself has a prefix."""
        refused = await self._attempt(address)
        return None if refused is None else refused.wait

    async def enter(self, scope: Scope, granted: Granted = NOBODY) -> Place:
        """Count one connection. Raises Busy."""
        if self._unlimited:
            return NOWHERE
        keys = [EVERY]
        if self._settings.per_address is not None and (address := address_of(scope)):
            keys.append(Full.ADDRESS.key(address))
        keys += self.keys_of(granted)
        await self.take(keys)
        return Place(self, tuple(keys))

    async def admit(self, keys: Sequence[str]) -> Place:
        """Return a place under each of these keys for what is no connection yet.

        Raises:
            LimitReached: One of them is full. It is not counted among the refused connections.
        """
        refused = await self._take_places(keys)
        if refused is not None:
            raise LimitReached(refused)
        return Place(self, tuple(keys))

    def keys_of(self, granted: Granted) -> list[str]:
        """Of who it is for the first guard; none where that does not count."""
        guard = next(iter(granted), None) if self._settings.per_identity is not None else None
        return [] if guard is None else [Full.IDENTITY.key(f"{guard}:{granted[guard].identity}")]

    async def take(self, keys: Sequence[str]) -> None:
        """A place under each of these, or under none. Raises Busy."""
        refused = await self._take(keys)
        if refused is not None:
            raise LimitReached(refused)

    async def _attempt(self, address: str) -> Refused | None:
        if self._settings.rate is None or not address:
            return None
        return await self._take([Full.RATE.key(address)])

    async def _take(self, keys: Sequence[str]) -> Refused | None:
        refused = await self._take_places(keys)
        if refused is not None:
            self.refused[refused.full] += 1
        return refused

    async def _take_places(self, keys: Sequence[str]) -> Refused | None:
        if self._shared:
            return await self._ask(keys)
        return self._own.take(0, keys, monotonic())

    def leave(self, keys: Sequence[str]) -> None:
        self._own.give(0, places(keys))
        if self._shared:
            self._gone.update(places(keys))
            self._soon()

    async def _ask(self, keys: Sequence[str]) -> Refused | None:
        """The supervisor, with all others of this turn of the loop."""
        answer: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        self._asking.append((keys, answer))
        self._soon()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.result() is None:
                self.leave(keys)  # let in, and gone before it heard of it
            raise

    def _soon(self) -> None:
        if self._turn is None:
            self._turn = asyncio.create_task(self._talk())

    async def _talk(self) -> None:
        """Until nothing is left to say; what comes up meanwhile goes with the next message."""
        try:
            while self._asking or self._gone:
                linked = await self._bus.until_linked(PATIENCE)
                asking, self._asking = self._asking, []
                gone, self._gone = dict(self._gone), Counter()
                told = {"gone": gone, "take": [keys for keys, _ in asking]}
                answers = await self._call(told) if linked else None
                for n, (keys, answer) in enumerate(asking):
                    self._decide(keys, answer, None if answers is None else answers[n])
        finally:
            self._turn = None

    async def _call(self, told: Mapping[str, Any]) -> list[list[Any]] | None:
        """None if the supervisor is away: it is told what is held here when it is back."""
        try:
            answers: list[list[Any]] = await self._bus.call(TOPIC, told, within=PATIENCE)
        except Away as exc:
            log.warning("this worker admits its share of connections by itself: %s", exc)
            self._bus.cut()  # or an answer that is only late would count them twice
            return None
        return answers

    def _decide(
        self, keys: Sequence[str], answer: asyncio.Future[Refused | None], said: list[Any] | None
    ) -> None:
        """said: what refuses it, or nothing; None where nobody answered."""
        if said is None:
            refused = self._own.take(0, keys, monotonic())
        else:
            refused = Refused(Full(said[0]), said[1]) if said else None
            self._own.add(0, {} if said else places(keys))
        if not answer.cancelled():
            answer.set_result(refused)
        elif refused is None:
            self.leave(keys)

    def _joined(self) -> None:
        """The supervisor is there, or there again: what is held here is all that counts."""
        self._gone.clear()
        self._bus.tell(TOPIC, {"held": dict(self._own.held(0))})


def count_for(relay: Relay, settings: Settings) -> Ledger:
    """Let a supervisor count for its workers."""
    ledger = Ledger.of(settings)

    def answer(worker: int, told: Mapping[str, Any]) -> list[Sequence[Any]] | None:
        if "held" in told:
            ledger.forget(worker)
            ledger.add(worker, told["held"])
            return None
        ledger.give(worker, told["gone"])
        return [ledger.take(worker, keys, monotonic()) or () for keys in told["take"]]

    relay.on(TOPIC, answer)
    relay.left.append(ledger.forget)
    return ledger


def address_of(scope: Scope) -> str:
    """Where a connection comes from; empty where that is not known."""
    client = scope.get("client")
    return source(client[0]) if client else ""


@cache_short(4096)
def source(host: str) -> str:
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


NOWHERE = Place(None)
"""Of a connection that need not be counted."""
