"""Three replicas restarted one by one behind real proxies, as `python -m bench.rolling` does with
more clients."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from support.proxies import Proxy

from bench.kafka import MockKafka
from bench.rolling import PROXIES, Size, run_rolling_restart
from gateway.hub.wires.wire import END_RETRY_RANGE_S
from gateway.kafka.embedded import EmbeddedKafka


@pytest.mark.night
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=name, marks=pytest.mark.needs(name)) for name, kind in PROXIES.items()],
)
def test_a_rolling_restart_costs_no_client_a_record_and_spreads_the_reconnects(kind: type[Proxy]):
    """60 clients: EventSources over HTTP/1.1 and HTTP/2, and WebSockets."""
    size = Size(clients=60, rate=20, waits_for_clients=False)
    with EmbeddedKafka() as kafka:
        restarts, lost, twice = asyncio.run(run_rolling_restart(MockKafka(kafka), kind, size))
    assert (lost, twice) == (0, 0)
    low_s, high_s = END_RETRY_RANGE_S
    for restart in restarts:
        told = Counter(int(delay_s) for delay_s in restart.told_delays_s)
        even = restart.ended_count / (high_s - low_s)
        assert restart.ended_count > 0
        assert max(told.values()) <= 1.5 * even + 2
