from __future__ import annotations

import asyncio

import pytest


@pytest.mark.night
@pytest.mark.needs("chromium")
def test_the_page_is_watched_in_each_condition():
    from bench.console import Size, measure

    figures = asyncio.run(measure(Size(partitions=30, clients=3, seconds=0.5)))
    assert len({each.what.partition(":")[0] for each in figures}) == 5
    frames = [each for each in figures if each.what.endswith("longest") and each.unit == "ms"]
    assert all(each.n > 0 for each in frames)
