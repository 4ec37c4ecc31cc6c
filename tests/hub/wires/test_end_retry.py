from __future__ import annotations

import pytest

from gateway.hub.wires.wire import EndRetries


@pytest.mark.parametrize(
    ("client_count", "last_s"), [(10, 15), (28_000, 15), (100_000, 51), (10_000_000, 300)]
)
def test_very_many_clients_come_back_over_a_longer_time(client_count: int, last_s: float):
    retries = EndRetries()
    retries.spread(client_count)
    drawn = [retries.draw_ms() for _ in range(1000)]
    assert 1000 <= min(drawn) < 1500
    assert 0.98 * last_s < max(drawn) / 1000 <= last_s
