"""The measurement of the console's page, with tiny sizes."""

from __future__ import annotations

import asyncio

import pytest

from bench.console import Size, measure


@pytest.mark.needs("chromium")
def test_the_page_is_watched_in_each_condition():
    figures = asyncio.run(measure(Size(partitions=30, clients=3, seconds=0.5)))
    conditions = {each.what.partition(":")[0] for each in figures}
    assert len(conditions) == 5
    frames = [each for each in figures if each.what.endswith("longest") and each.unit == "ms"]
    assert all(each.n > 0 for each in frames)
