from __future__ import annotations

import itertools
import random
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import orjson
import psutil
import pytest

from gateway.web.demo import CUSTOMERS, STATUSES, HostMetrics, generate_orders


def build_events(count: int, seed: int = 1) -> list[tuple[bytes, dict[str, Any]]]:
    stream = itertools.islice(generate_orders(random.Random(seed), clock=lambda: 1.5), count)
    return [(key, orjson.loads(value)) for key, value in stream]


def test_every_order_goes_through_its_statuses_in_their_order():
    seen = defaultdict(list)
    for _, event in build_events(2000):
        seen[event["order"]].append(event["status"])
    assert all(tuple(each) == STATUSES[: len(each)] for each in seen.values())
    shipped = [each for each in seen.values() if each[-1] == "shipped"]
    assert len(shipped) > 0.9 * len(seen)


def test_the_key_is_the_customer_and_stays_the_orders_own():
    customers = defaultdict(set)
    for key, event in build_events(500):
        assert key.decode() == event["customer"]
        customers[event["order"]].add(key.decode())
    assert all(len(each) == 1 for each in customers.values())
    assert set().union(*customers.values()) == set(CUSTOMERS)


@pytest.mark.parametrize("seed", range(20))
def test_every_customer_has_an_order_within_the_first_events(seed: int):
    first = build_events(len(CUSTOMERS), seed)
    assert {key.decode() for key, _ in first} == set(CUSTOMERS)


def test_an_order_event_is_json_with_a_time_in_milliseconds():
    [(_, event)] = build_events(1)
    assert event["at"] == 1500
    assert event["status"] == "created"
    assert event["total"] > 0


def test_the_same_seed_gives_the_same_orders():
    assert build_events(50, seed=7) == build_events(50, seed=7) != build_events(50, seed=8)


def test_the_hosts_figures_come_as_one_record_a_group_keyed_by_its_name():
    records = HostMetrics().sample_metrics()
    groups = {orjson.loads(value)["metric"]: orjson.loads(value) for _, value in records}
    assert list(groups) == ["cpu", "memory", "disk", "network"]
    assert {key.decode() for key, _ in records} == {groups["cpu"]["host"]}
    assert len(groups["cpu"]["cores"]) == psutil.cpu_count()
    assert 0 < groups["memory"]["used"] <= groups["memory"]["total"]
    assert 0 <= groups["disk"]["percent"] <= 100


def test_rates_are_bytes_a_second_since_the_sample_before(monkeypatch: pytest.MonkeyPatch):
    clock = iter([100.0, 102.0, 103.0])
    disk_bytes, network_bytes = iter([1000, 5000, 4000]), iter([1000, 5000, 4000])

    def read_disk() -> Any:
        return SimpleNamespace(read_bytes=(read := next(disk_bytes)), write_bytes=read)

    def read_network() -> Any:
        return SimpleNamespace(bytes_recv=(read := next(network_bytes)), bytes_sent=read)

    monkeypatch.setattr(psutil, "disk_io_counters", read_disk)
    monkeypatch.setattr(psutil, "net_io_counters", read_network)
    metrics = HostMetrics(clock=lambda: next(clock))
    network = orjson.loads(metrics.sample_metrics()[3][1])
    assert (network["received"], network["sent"], network["at"]) == (2000, 2000, 102_000)
    assert orjson.loads(metrics.sample_metrics()[2][1])["read"] == 0, "a counter that went back"


def test_a_machine_that_shows_no_disks_still_has_figures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    disk = orjson.loads(HostMetrics().sample_metrics()[2][1])
    assert (disk["read"], disk["written"]) == (0, 0)
