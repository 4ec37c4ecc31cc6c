from __future__ import annotations

import collections
import functools
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.web.pipeline_demo.generate import (
    ShopEvent,
    ShopGenerator,
    ShopTraffic,
    generate_events,
    generate_users,
)

START = 1_700_000_000.0
BUSY = ShopTraffic(clicks=200, orders=50, disorder=0.5, late=0.05, late_by_s=60, seed=7)


@functools.cache
def made(traffic: ShopTraffic = BUSY, seconds: float = 60) -> list[ShopEvent]:
    return list(generate_events(traffic, START, seconds))


def of(topic: str, found: list[ShopEvent]) -> list[ShopEvent]:
    return [event for event in found if event.topic == topic]


def test_the_same_seed_gives_the_same_events_and_another_gives_others():
    assert made() == made()
    assert made() != made(ShopTraffic(clicks=200, orders=50, seed=8))


@settings(max_examples=30)
@given(st.lists(st.floats(0, 2), min_size=1, max_size=8))
def test_how_often_it_is_asked_changes_nothing(steps: list[float]):
    shop, now, parts = ShopGenerator(BUSY, START), START, []
    for step in steps:
        now += step
        parts += shop.take_events(now)
    assert parts == ShopGenerator(BUSY, START).take_events(now)


def test_events_are_given_in_the_order_of_sending_and_happened_out_of_order():
    found = made()
    assert all(one.sent_at <= other.sent_at for one, other in pairwise(found))
    happened = [event.value["at"] for event in of("clicks", found)]
    assert sum(one > other for one, other in pairwise(happened)) > len(happened) / 5


def test_the_share_that_is_asked_for_is_late():
    found = made()
    late = sum(event.value["sent"] - event.value["at"] > 50_000 for event in found)
    assert 0.03 < late / len(found) < 0.07


def test_a_few_users_do_most_of_it():
    counted = collections.Counter(event.key for event in of("clicks", made()))
    assert counted["user-0"] > 10 * len(of("clicks", made())) / BUSY.users


def test_orders_are_paid_once_or_never():
    found = made()
    orders = {event.key for event in of("orders", found)}
    payments = [event.key for event in of("payments", found)]
    assert set(payments) <= orders
    assert len(payments) == len(set(payments))
    assert 0.8 < len(payments) / len(orders) < 0.9


def test_every_user_has_a_row():
    rows = dict(generate_users(BUSY))
    assert len(rows) == BUSY.users
    assert {event.value["user"] for event in of("clicks", made())} <= rows.keys()
