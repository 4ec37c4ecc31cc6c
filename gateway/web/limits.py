"""How many clients may be connected at once, in all and from one address.

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
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any, TypeAlias

from starlette.types import Scope

from ..config import Limits as Settings
from ..errors import RequestError
from .bus import Away, Bus
from .relay import Relay

log = logging.getLogger(__name__)

TOPIC = "limits"
ADMITTED = ""
PATIENCE = 1.0  # seconds for the supervisor to answer
AGAIN = (3.0, 10.0)  # seconds until one who was refused may try again

Leave: TypeAlias = Callable[[], None]


class Full(StrEnum):
    """Which limit is reached."""

    ALL = "connections"
    ADDRESS = "perAddress"


class Busy(RequestError):
    """One limit is reached: 503 for that of all, 429 for that of one address."""

    def __init__(self, full: Full) -> None:
        said = {
            Full.ALL: (503, "the gateway has as many clients as it takes; come back later"),
            Full.ADDRESS: (429, "your address has as many connections as it may; close one"),
        }
        status, detail = said[full]
        super().__init__(status, "Busy", detail, retry_after=random.uniform(*AGAIN))


class Ledger:
    """Who holds how many connections, by worker and address."""

    def __init__(self, connections: int | None, per_address: int | None) -> None:
        self._limits = connections, per_address
        self._held: dict[int, Counter[str]] = {}
        self._addresses: Counter[str] = Counter()
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def held(self, worker: int) -> Mapping[str, int]:
        return self._held.get(worker, {})

    def full(self, address: str) -> Full | None:
        """What keeps one more out. address: "" for unknown, which only counts in all."""
        connections, per_address = self._limits
        if connections is not None and self._total >= connections:
            return Full.ALL
        if per_address is not None and address and self._addresses[address] >= per_address:
            return Full.ADDRESS
        return None

    def take(self, worker: int, address: str) -> Full | None:
        """One more, if it is not too many."""
        full = self.full(address)
        if full is None:
            self.add(worker, {address: 1})
        return full

    def add(self, worker: int, counts: Mapping[str, int]) -> None:
        """They are there, whether it is too many or not."""
        held = self._held.setdefault(worker, Counter())
        for address, count in counts.items():
            held[address] += count
            self._addresses[address] += count
            self._total += count

    def give(self, worker: int, counts: Mapping[str, int]) -> None:
        held = self._held.get(worker, Counter())
        for address, count in counts.items():
            gone = min(count, held[address])
            self._total -= gone
            for each in (held, self._addresses):
                each[address] -= gone
                if not each[address]:
                    del each[address]

    def forget(self, worker: int) -> None:
        """It ended, and all of its connections with it."""
        self.give(worker, dict(self.held(worker)))
        self._held.pop(worker, None)


class Limits:
    """The limits of `listen.limits`, as one worker sees them."""

    def __init__(self, settings: Settings, bus: Bus) -> None:
        self._bus = bus
        self._unlimited = settings.connections is None and settings.per_address is None
        self._shared = bus.workers > 1
        self._own = Ledger(
            _share(settings.connections, bus.workers), _share(settings.per_address, bus.workers)
        )
        self.refused: Counter[str] = Counter()  # connections, by what kept them out
        self._asking: list[tuple[str, asyncio.Future[Full | None]]] = []
        self._gone: Counter[str] = Counter()
        self._turn: asyncio.Task[None] | None = None
        bus.joined.append(self._joined)

    @property
    def held(self) -> int:
        """Connections of this worker; 0 where there are no limits."""
        return self._own.total

    async def enter(self, scope: Scope) -> Leave:
        """Count one connection; to be called when it is over. Raises Busy."""
        if self._unlimited:
            return _nothing
        client = scope.get("client")
        address = source(client[0]) if client else ""
        full = await self._ask(address) if self._shared else self._own.take(0, address)
        if full is not None:
            self.refused[full] += 1
            raise Busy(full)
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                self._leave(address)

        return leave

    def _leave(self, address: str) -> None:
        self._own.give(0, {address: 1})
        if self._shared:
            self._gone[address] += 1
            self._soon()

    async def _ask(self, address: str) -> Full | None:
        """The supervisor, with all others of this turn of the loop."""
        answer: asyncio.Future[Full | None] = asyncio.get_running_loop().create_future()
        self._asking.append((address, answer))
        self._soon()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.result() is None:
                self._leave(address)  # let in, and gone before it heard of it
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
                told = {"gone": gone, "take": [address for address, _ in asking]}
                answers = await self._call(told) if linked else None
                for n, (address, answer) in enumerate(asking):
                    self._decide(address, answer, None if answers is None else answers[n])
        finally:
            self._turn = None

    async def _call(self, told: Mapping[str, Any]) -> list[str] | None:
        """None if the supervisor is away: it is told what is held here when it is back."""
        try:
            answers: list[str] = await self._bus.call(TOPIC, told, within=PATIENCE)
        except Away as exc:
            log.warning("this worker admits its share of connections by itself: %s", exc)
            self._bus.cut()  # or an answer that is only late would count them twice
            return None
        return answers

    def _decide(self, address: str, answer: asyncio.Future[Full | None], said: str | None) -> None:
        if said is None:
            full = self._own.take(0, address)
        else:
            full = None if said == ADMITTED else Full(said)
            self._own.add(0, {address: 1} if full is None else {})
        if not answer.cancelled():
            answer.set_result(full)
        elif full is None:
            self._leave(address)

    def _joined(self) -> None:
        """The supervisor is there, or there again: what is held here is all that counts."""
        self._gone.clear()
        self._bus.tell(TOPIC, {"held": dict(self._own.held(0))})


def count_for(relay: Relay, settings: Settings) -> Ledger:
    """Let a supervisor count for its workers."""
    ledger = Ledger(settings.connections, settings.per_address)

    def answer(worker: int, told: Mapping[str, Any]) -> list[str] | None:
        if "held" in told:
            ledger.forget(worker)
            ledger.add(worker, told["held"])
            return None
        ledger.give(worker, told["gone"])
        return [ledger.take(worker, address) or ADMITTED for address in told["take"]]

    relay.on(TOPIC, answer)
    relay.left.append(ledger.forget)
    return ledger


@lru_cache(4096)
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


def _share(limit: int | None, workers: int) -> int | None:
    return None if limit is None else -(-limit // workers)


def _nothing() -> None:
    pass
