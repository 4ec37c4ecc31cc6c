"""What every test may use: fixtures of tests/support, and the marker `needs`."""

from __future__ import annotations

import pytest
from support.needs import need

pytest_plugins = ["support.brokers", "support.any_topic", "support.secured", "support.shares"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        need(*mark.args)
