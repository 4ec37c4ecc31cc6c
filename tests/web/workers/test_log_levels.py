"""Log levels that an operator changes while the gateway runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from gateway.telemetry import logs
from gateway.web.workers.bus import Bus
from gateway.web.workers.log_levels import LogLevels


@pytest.fixture
def levels() -> Iterator[LogLevels]:
    before = logging.getLogger().level
    yield LogLevels(Bus())
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
def test_a_name_that_nothing_logs_as_is_refused(levels: LogLevels, name: str, closest: str):
    """A misspelt name was taken, and nothing more was logged."""
    before = dict(levels.current_levels)
    with pytest.raises(ValueError, match=f"no component or library logs as '{name}'; .*{closest}"):
        levels.set_levels("error", {name: "debug"})
    assert dict(levels.current_levels) == before


@pytest.mark.parametrize("name", ["kafka.fetch", "uvicorn", "web.workers.log_levels_module"])
def test_components_libraries_and_modules_that_log_are_known(levels: LogLevels, name: str):
    logging.getLogger("gateway.web.workers.log_levels_module")
    levels.set_levels("info", {name: "debug"})
    assert levels.current_levels[name] == "debug"
