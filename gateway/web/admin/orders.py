"""What an operator forbids until it is allowed again: somebody's access, and whole routes.

It holds in all workers, also in one that is started later: the supervisor keeps it (`keep`), and
hands it to each. A reload changes nothing of it; a restart of the gateway forgets it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from gateway.errors import NotGranted, RequestError
from gateway.web.routing.routes import Match, name_of
from gateway.web.streams.open_streams import Openings
from gateway.web.workers.bus import Away, Bus
from gateway.web.workers.relay import Relay

from .wanted import Wanted

TOPIC = "orders"
WITHIN = 5.0  # seconds for the supervisor, and the workers, to answer
AGAIN = (3.0, 10.0)  # seconds until a client of a paused route tries again

Key: TypeAlias = tuple[str, str, str]


class Paused(RequestError):
    """A route that an operator paused."""

    reason = "paused"

    def __init__(self) -> None:
        detail = "this route is paused by an operator; come back later"
        super().__init__(503, "Paused", detail, retry_after=random.uniform(*AGAIN))


class Revoked(NotGranted):
    """Whose access an operator revoked."""

    reason = "access-revoked"

    def __init__(self) -> None:
        super().__init__(403, "your access was revoked; ask whoever runs the gateway")


class Order(NamedTuple):
    """guard, identity: whose access is revoked; empty for any guard. Or the route that is paused.

    until, since: seconds since 1970. by: who asked.
    """

    guard: str = ""
    identity: str = ""
    route: str = ""
    until: float | None = None
    since: float = 0.0
    by: str = ""

    @property
    def key(self) -> Key:
        return self.guard, self.identity, self.route

    @property
    def is_over(self) -> bool:
        return self.until is not None and self.until <= time.time()

    @property
    def wanted(self) -> Wanted:
        """The streams that it ends."""
        if self.route:
            return Wanted(route=self.route)
        return Wanted(identity=self.identity, guard=self.guard or None)

    @property
    def reason(self) -> str:
        return Paused.reason if self.route else Revoked.reason


@dataclass(frozen=True, slots=True)
class Done:
    """ended: streams, by now or in a moment. missing: workers that did not answer."""

    ended: int
    missing: list[int]


class Orders:
    """As one worker knows them."""

    def __init__(self, openings: Openings, bus: Bus) -> None:
        self._openings = openings
        self._bus = bus
        self._held: dict[Key, Order] = {}
        self._meanwhile: list[Any] | None = None  # heard while all of them are asked for
        openings.refusal = self.refusal
        bus.on(TOPIC, self._hear)
        bus.joined.append(self._joined)

    @property
    def held(self) -> list[Order]:
        return [order for order in self._held.values() if not order.is_over]

    def refusal(self, match: Match) -> Paused | Revoked | None:
        """What forbids a stream now."""
        if not self._held:
            return None
        if ("", "", name_of(match.route)) in self._held:
            return Paused()
        for guard, grant in match.granted.items():
            for key in ((guard, grant.identity, ""), ("", grant.identity, "")):
                order = self._held.get(key)
                if order is not None and not order.is_over:
                    return Revoked()
        return None

    def paused(self, route: str) -> Order | None:
        return self._held.get(("", "", route))

    def adopt(self, told: Iterable[Any]) -> None:
        """These, and no others."""
        self._held = {order.key: order for order in map(_order, told)}
        for change in self._meanwhile or ():
            self._take(*change)
        self._meanwhile = None
        for order in self.held:
            self._openings.end(order.wanted.fits, order.reason)

    async def give(self, order: Order) -> Done:
        """Raises RequestError 503 where the supervisor does not answer."""
        return await self._spread(order.key, order)

    async def lift(self, key: Key) -> Done:
        """Raises as `give`; RequestError 404 for one that is not held."""
        if key not in self._held:
            raise RequestError(404, "Not found", "nothing of this kind is forbidden; see the list")
        return await self._spread(key, None)

    async def _spread(self, key: Key, order: Order | None) -> Done:
        change = [key, order]
        if self._bus.workers > 1:
            try:
                await self._bus.call(TOPIC, change, within=WITHIN)
            except Away as exc:
                raise RequestError(503, "Busy", f"{exc}; try again", retry_after=1.0) from None
        answers = await self._bus.ask(TOPIC, change, within=WITHIN)
        return Done(sum(answers.said.values()), sorted(answers.missing))

    def _hear(self, worker: int, change: tuple[Any, Any]) -> int:
        if self._meanwhile is not None:
            self._meanwhile.append(change)
        order = self._take(*change)
        return 0 if order is None else self._openings.end(order.wanted.fits, order.reason)

    def _take(self, key: Any, told: Any) -> Order | None:
        if told is None:
            self._held.pop(tuple(key), None)
            return None
        order = _order(told)
        self._held = {each.key: each for each in (*self.held, order)}
        return order

    def _joined(self) -> None:
        self._openings.do(self._ask_for_all())

    async def _ask_for_all(self) -> None:
        """Until they are told; `_joined` is called anew where the supervisor went away."""
        while True:
            self._meanwhile = []
            try:
                told = await self._bus.call(TOPIC, None, within=WITHIN)
            except Away:
                if not self._bus.linked:
                    return
                continue
            self.adopt(told)
            return


def keep(relay: Relay) -> Callable[[], list[Order]]:
    """Let a supervisor keep them for its workers. What it keeps now, for one that starts."""
    held: dict[Key, Order] = {}

    def current() -> list[Order]:
        for key in [key for key, order in held.items() if order.is_over]:
            del held[key]
        return list(held.values())

    def answer(worker: int, change: tuple[Any, Any] | None) -> list[Order]:
        if change is not None:
            key, told = change
            held.pop(tuple(key), None)
            if told is not None:
                order = _order(told)
                held[order.key] = order
        return current()

    relay.on(TOPIC, answer)
    return current


def _order(told: Any) -> Order:
    return Order(*told)
