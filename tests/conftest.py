"""What every test may use: fixtures of tests/support, and the marker `needs`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from support.needs import need

pytest_plugins = [name for name in ("support.brokers",) if find_spec(name)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        need(*mark.args)
