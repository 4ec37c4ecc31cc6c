"""Log levels that an operator changes while the gateway runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from gateway.telemetry import logs
from gateway.web.admin.app import set_log_levels


@pytest.fixture(autouse=True)
def kept_levels() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logs.set_levels("info", {})
    logging.getLogger().setLevel(before)


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("kafka.fecth", "kafka.fetch"),
        ("aiokafa", "aiokafka"),
        ("gateway.web", "did you mean 'web'"),
    ],
)
def test_a_name_that_nothing_logs_as_is_refused(name: str, closest: str):
    """A misspelt name was taken, and nothing more was logged."""
    before = dict(logs.get_levels())
    with pytest.raises(ValueError, match=f"no component or library logs as '{name}'; .*{closest}"):
        set_log_levels("error", {name: "debug"})
    assert dict(logs.get_levels()) == before


@pytest.mark.parametrize("name", ["kafka.fetch", "uvicorn", "web.workers.some_module"])
def test_components_libraries_and_modules_that_log_are_known(name: str):
    logging.getLogger("gateway.web.workers.some_module")
    set_log_levels("info", {name: "debug"})
    assert logs.get_levels()[name] == "debug"
