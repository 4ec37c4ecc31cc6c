"""Each way to write is measured with writes that arrive whole."""

from __future__ import annotations

import shutil

import uvloop

from bench.writes import Size, measure


def test_each_way_is_measured_at_each_rest():
    costs = uvloop.run(measure(Size(clients=3, rounds=2, rests_s=(0.0, 0.001))))
    ways = 3 if shutil.which("cc") else 2
    assert len({cost.way for cost in costs}) == ways
    assert [cost.rest_s for cost in costs] == [0.0] * ways + [0.001] * ways
    assert all(cost.cpu_us > 0 for cost in costs)
