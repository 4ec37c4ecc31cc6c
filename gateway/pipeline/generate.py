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
class ShopTraffic:
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
    late_by_s: float = 120.0
    paid: float = 0.85
    mean_payment_delay_s: float = 4.0
    seed: int = 1


class ShopEvent(NamedTuple):
    """sent: seconds since the epoch. value: has `at`, when it happened, and `sent`, both in
    milliseconds since the epoch."""

    sent_at: float
    topic: str
    key: str
    value: dict[str, Any]


class ShopGenerator:
    """All that happens from `start` on, seconds since the epoch."""

    def __init__(self, traffic: ShopTraffic, start: float) -> None:
        self._traffic = traffic
        self._random = random.Random(traffic.seed)
        self._user_weights = _build_zipf_weights(traffic.users, traffic.skew)
        self._merchant_weights = _build_zipf_weights(traffic.merchants, traffic.skew)
        self._ids = itertools.count(1)
        self._send_order = itertools.count()
        self._unsent: list[tuple[float, int, ShopEvent]] = []
        self._next_at = {
            "clicks": self._draw_next_time(start, traffic.clicks),
            "orders": self._draw_next_time(start, traffic.orders),
        }

    def take_events(self, now: float) -> list[ShopEvent]:
        """What is sent up to then and was not given before, in the order it is sent."""
        while (happens := min(self._next_at.values())) <= now and happens < float("inf"):
            kind = min(self._next_at, key=self._next_at.__getitem__)
            if kind == "clicks":
                self._add_click(happens)
                self._next_at[kind] = self._draw_next_time(happens, self._traffic.clicks)
            else:
                self._add_order(happens)
                self._next_at[kind] = self._draw_next_time(happens, self._traffic.orders)
        sent = []
        while self._unsent and self._unsent[0][0] <= now:
            sent.append(heapq.heappop(self._unsent)[2])
        return sent

    def close(self) -> None:
        """Nothing new happens; what happened is still sent."""
        self._next_at = dict.fromkeys(self._next_at, float("inf"))

    def _add_click(self, at: float) -> None:
        user = f"user-{self._draw_rank(self._user_weights)}"
        number = next(self._ids)
        page = self._random.choice(PAGES)
        self._schedule_event("clicks", user, at, {"id": f"c-{number}", "user": user, "page": page})

    def _add_order(self, at: float) -> None:
        user, merchant = (
            f"user-{self._draw_rank(self._user_weights)}",
            f"shop-{self._draw_rank(self._merchant_weights)}",
        )
        order = f"o-{next(self._ids)}"
        amount = round(self._random.lognormvariate(3.0, 0.8), 2)
        value = {"order": order, "user": user, "merchant": merchant, "amount": amount}
        self._schedule_event("orders", order, at, value)
        if self._random.random() < self._traffic.paid:
            paid = at + self._random.expovariate(1 / self._traffic.mean_payment_delay_s)
            number = next(self._ids)
            value = {"payment": f"p-{number}", "order": order, "amount": amount}
            self._schedule_event("payments", order, paid, value)

    def _schedule_event(self, topic: str, key: str, at: float, value: dict[str, Any]) -> None:
        traffic, some = self._traffic, self._random
        sent = at + some.expovariate(1 / traffic.disorder) if traffic.disorder else at
        if some.random() < traffic.late:
            sent += traffic.late_by_s
        stamps = {"at": round(at * 1000), "sent": round(sent * 1000)}
        event = ShopEvent(sent, topic, key, value | stamps)
        heapq.heappush(self._unsent, (sent, next(self._send_order), event))

    def _draw_next_time(self, at: float, rate: float) -> float:
        return at + self._random.expovariate(rate) if rate else float("inf")

    def _draw_rank(self, weights: list[float]) -> int:
        return self._random.choices(range(len(weights)), cum_weights=weights)[0]


def generate_events(traffic: ShopTraffic, start: float, seconds: float) -> Iterator[ShopEvent]:
    """A shop's whole life at once, and what was still to be sent when it ended."""
    shop = ShopGenerator(traffic, start)
    for second in range(int(seconds)):
        yield from shop.take_events(start + second + 1)
    shop.close()
    yield from shop.take_events(float("inf"))


def generate_users(traffic: ShopTraffic) -> Iterator[tuple[str, dict[str, str]]]:
    """The table of users: a key and its row."""
    some = random.Random(traffic.seed)
    for number in range(traffic.users):
        name = f"user-{number}"
        yield name, {"user": name, "country": some.choice(COUNTRIES), "plan": some.choice(PLANS)}


def _build_zipf_weights(count: int, exponent: float) -> list[float]:
    """Cumulated weights: the first ones are the busiest."""
    return list(itertools.accumulate(1 / (rank + 1) ** exponent for rank in range(count)))
