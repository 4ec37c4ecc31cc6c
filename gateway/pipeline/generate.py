"""A shop that never closes: clicks, orders and payments as a real one sends them.

A few users do most of it, events come out of order, some late, some orders are never paid. The
same seed gives the same events, so what a job makes of them can be compared with an oracle.
Without I/O: who sends them brings the time.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

PAGES = ("home", "search", "shoes", "coats", "hats", "basket", "checkout", "help")
COUNTRIES = ("DE", "FR", "JP", "BR", "KE", "IN", "US", "PL")
PLANS = ("free", "plus", "gold")


@dataclass(frozen=True)
class Traffic:
    """clicks, orders: a second. skew: exponent of Zipf's law, 0 for none. disorder: mean seconds
    between an event and its sending. late: share that is sent `lateness` seconds after it
    happened. paid: share of orders, within `delay` seconds on the average. seed: of it all."""

    clicks: float = 40.0
    orders: float = 8.0
    users: int = 500
    merchants: int = 20
    skew: float = 1.1
    disorder: float = 0.2
    late: float = 0.01
    lateness: float = 120.0
    paid: float = 0.85
    delay: float = 4.0
    seed: int = 1


class Event(NamedTuple):
    """sent: seconds since the epoch. value: has `at`, when it happened, and `sent`, both in
    milliseconds since the epoch."""

    sent: float
    topic: str
    key: str
    value: dict[str, Any]


class Shop:
    """All that happens from `start` on, seconds since the epoch."""

    def __init__(self, traffic: Traffic, start: float) -> None:
        self._traffic = traffic
        self._random = random.Random(traffic.seed)
        self._users = _zipf(traffic.users, traffic.skew)
        self._merchants = _zipf(traffic.merchants, traffic.skew)
        self._numbers = itertools.count(1)
        self._sends = itertools.count()
        self._due: list[tuple[float, int, Event]] = []
        self._next = {
            "clicks": self._after(start, traffic.clicks),
            "orders": self._after(start, traffic.orders),
        }

    def until(self, now: float) -> list[Event]:
        """What is sent up to then and was not given before, in the order it is sent."""
        while (happens := min(self._next.values())) <= now and happens < float("inf"):
            kind = min(self._next, key=self._next.__getitem__)
            if kind == "clicks":
                self._click(happens)
                self._next[kind] = self._after(happens, self._traffic.clicks)
            else:
                self._order(happens)
                self._next[kind] = self._after(happens, self._traffic.orders)
        sent = []
        while self._due and self._due[0][0] <= now:
            sent.append(heapq.heappop(self._due)[2])
        return sent

    def close(self) -> None:
        """Nothing new happens; what happened is still sent."""
        self._next = dict.fromkeys(self._next, float("inf"))

    def _click(self, at: float) -> None:
        user = f"user-{self._pick(self._users)}"
        number = next(self._numbers)
        page = self._random.choice(PAGES)
        self._send("clicks", user, at, {"id": f"c-{number}", "user": user, "page": page})

    def _order(self, at: float) -> None:
        user, merchant = f"user-{self._pick(self._users)}", f"shop-{self._pick(self._merchants)}"
        order = f"o-{next(self._numbers)}"
        amount = round(self._random.lognormvariate(3.0, 0.8), 2)
        value = {"order": order, "user": user, "merchant": merchant, "amount": amount}
        self._send("orders", order, at, value)
        if self._random.random() < self._traffic.paid:
            paid = at + self._random.expovariate(1 / self._traffic.delay)
            number = next(self._numbers)
            value = {"payment": f"p-{number}", "order": order, "amount": amount}
            self._send("payments", order, paid, value)

    def _send(self, topic: str, key: str, at: float, value: dict[str, Any]) -> None:
        traffic, some = self._traffic, self._random
        sent = at + some.expovariate(1 / traffic.disorder) if traffic.disorder else at
        if some.random() < traffic.late:
            sent += traffic.lateness
        stamps = {"at": round(at * 1000), "sent": round(sent * 1000)}
        event = Event(sent, topic, key, value | stamps)
        heapq.heappush(self._due, (sent, next(self._sends), event))

    def _after(self, at: float, rate: float) -> float:
        return at + self._random.expovariate(rate) if rate else float("inf")

    def _pick(self, weights: list[float]) -> int:
        return self._random.choices(range(len(weights)), cum_weights=weights)[0]


def events(traffic: Traffic, start: float, seconds: float) -> Iterator[Event]:
    """A shop's whole life at once, and what was still to be sent when it ended."""
    shop = Shop(traffic, start)
    for second in range(int(seconds)):
        yield from shop.until(start + second + 1)
    shop.close()
    yield from shop.until(float("inf"))


def users(traffic: Traffic) -> Iterator[tuple[str, dict[str, str]]]:
    """The table of users: a key and its row."""
    some = random.Random(traffic.seed)
    for number in range(traffic.users):
        name = f"user-{number}"
        yield name, {"user": name, "country": some.choice(COUNTRIES), "plan": some.choice(PLANS)}


def _zipf(count: int, exponent: float) -> list[float]:
    """Cumulated weights: the first ones are the busiest."""
    return list(itertools.accumulate(1 / (rank + 1) ** exponent for rank in range(count)))
