"""Generate the events of a shop for demos and tests: clicks, orders and payments.

A few users cause most events, events arrive out of order, some late, and some orders are never
paid. The same seed gives the same events, so that results can be compared with an oracle.
This module does no I/O: callers pass the time in seconds since 1970, and send the events.
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
    """The amount and the distribution of a shop's events; rates are per second.

    Attributes:
        skew: The exponent of Zipf's law, by which events are distributed over users and merchants;
            0 distributes them evenly.
        disorder: The mean time from an event to its sending, in seconds.
        late: The share of events that are sent `late_by_s` later still, from 0 to 1.
    """

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
    """An event of the shop, as one record.

    Attributes:
        sent_at: When it is sent, in seconds since 1970.
        value: It has `at`, the time of the event, and `sent`, both in milliseconds since 1970.
    """

    sent_at: float
    topic: str
    key: str
    value: dict[str, Any]


class ShopGenerator:
    """The events of a shop from a start time on, in the order in which they are sent.

    Between calls, `_unsent` is a heap of the events that have happened and are not yet due to be
    sent, and `_next_at` has the time of the next click and of the next order.
    """

    def __init__(self, traffic: ShopTraffic, start: float) -> None:
        self._traffic = traffic
        self._random = random.Random(traffic.seed)
        self._user_weights = _build_zipf_weights(traffic.users, traffic.skew)
        self._merchant_weights = _build_zipf_weights(traffic.merchants, traffic.skew)
        self._ids = itertools.count(1)
        self._send_order = itertools.count()  # the order in the heap of events sent at one time
        self._unsent: list[tuple[float, int, ShopEvent]] = []
        self._next_at = {
            "clicks": self._draw_next_time(start, traffic.clicks),
            "orders": self._draw_next_time(start, traffic.orders),
        }

    def take_events(self, now: float) -> list[ShopEvent]:
        """Return the events due since the last call; after `close`, infinity returns the rest."""
        while (at := min(self._next_at.values())) <= now and at < float("inf"):
            kind = min(self._next_at, key=self._next_at.__getitem__)
            if kind == "clicks":
                self._add_click(at)
                self._next_at[kind] = self._draw_next_time(at, self._traffic.clicks)
            else:
                self._add_order(at)
                self._next_at[kind] = self._draw_next_time(at, self._traffic.orders)
        sent = []
        while self._unsent and self._unsent[0][0] <= now:
            sent.append(heapq.heappop(self._unsent)[2])
        return sent

    def close(self) -> None:
        """Generate no new events. Those that have happened are still sent."""
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
            paid_at = at + self._random.expovariate(1 / self._traffic.mean_payment_delay_s)
            number = next(self._ids)
            value = {"payment": f"p-{number}", "order": order, "amount": amount}
            self._schedule_event("payments", order, paid_at, value)

    def _schedule_event(self, topic: str, key: str, at: float, value: dict[str, Any]) -> None:
        traffic, rng = self._traffic, self._random
        sent_at = at + rng.expovariate(1 / traffic.disorder) if traffic.disorder else at
        if rng.random() < traffic.late:
            sent_at += traffic.late_by_s
        times = {"at": round(at * 1000), "sent": round(sent_at * 1000)}
        event = ShopEvent(sent_at, topic, key, value | times)
        heapq.heappush(self._unsent, (sent_at, next(self._send_order), event))

    def _draw_next_time(self, at: float, rate: float) -> float:
        return at + self._random.expovariate(rate) if rate else float("inf")

    def _draw_rank(self, weights: list[float]) -> int:
        return self._random.choices(range(len(weights)), cum_weights=weights)[0]


def generate_events(traffic: ShopTraffic, start: float, seconds: float) -> Iterator[ShopEvent]:
    """Generate all events of a shop in the order of sending, also those sent after it closed."""
    shop = ShopGenerator(traffic, start)
    for second in range(int(seconds)):
        yield from shop.take_events(start + second + 1)
    shop.close()
    yield from shop.take_events(float("inf"))


def generate_users(traffic: ShopTraffic) -> Iterator[tuple[str, dict[str, str]]]:
    rng = random.Random(traffic.seed)
    for number in range(traffic.users):
        name = f"user-{number}"
        yield name, {"user": name, "country": rng.choice(COUNTRIES), "plan": rng.choice(PLANS)}


def _build_zipf_weights(count: int, exponent: float) -> list[float]:
    """Return the cumulative weights of `count` ranks, of which the first is the most frequent."""
    return list(itertools.accumulate(1 / (rank + 1) ** exponent for rank in range(count)))
