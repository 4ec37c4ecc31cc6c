"""Which worker a test goes to, where several share the work (`--dist loadgroup`).

A module's tests go to one worker, so that what it starts for all of them is started once. Tests of
a session's broker go to few, too: Kafka takes 250 MB, 2 s of CPU to start, and 2 to 5 % of a core
while it idles, so it ends with the last test of its group. So does Spark, a JVM of 1 GB and 8 s. No
group should take more than a sixth of the whole, so those that would are in parts (`PARTS`).
Without that option this changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

BROKER_FIXTURES = ("session_kafka", "session_kafka3", "session_secured")
SPARK_FIXTURE = "session_spark"
SPARK_AND_BROKER = "spark_and_broker"
SPARK_PROCESSES = "spark_processes"  # of its own each, and a broker
KAFKA_E2E = "kafka_e2e"
# Of the groups that take longest, the modules that are a group of their own: a group's name and
# how their paths begin.
PARTS = {
    SPARK_AND_BROKER: ("spark_exactly_once", "tests/pipeline/exactly_once/"),
    KAFKA_E2E: ("kafka_e2e_sidecar", "tests/e2e/test_sidecar_"),
    "session_kafka": ("session_kafka_sidecar", "tests/sidecar/"),
}
SPARK_GROUP_PREFIX = "spark_"
# In the order of their start: each takes minutes, and starts what it needs of Kafka and Spark. What
# a test groups itself (`xdist_group`) starts before them.
LONG_GROUPS = (
    *(SPARK_AND_BROKER, "spark_exactly_once", "kafka_e2e_sidecar", KAFKA_E2E, SPARK_PROCESSES),
    *(SPARK_FIXTURE, "session_kafka", "session_kafka_sidecar", "session_kafka3"),
    "session_secured",
)
# For a test that needs Spark. Where the machine did ten things for each core, one took 11 minutes.
SPARK_TEST_TIMEOUT_S = 1800.0
E2E_PATH = "tests/e2e/"
LONG_TEST_PATHS = (E2E_PATH, "tests/model/")

_running_fixtures: dict[str, Callable[[], None]] = {}  # what ends each that is shared and runs


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Four more than cores: many tests wait for most of their time. Each worker takes 0.6 GB."""
    return (os.cpu_count() or 1) + 4


@pytest.hookimpl(tryfirst=True)  # before the groups become a part of the names
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=estimate_start)
    for item in items:
        if not get_named_group(item):
            item.add_marker(pytest.mark.xdist_group(choose_group(item)))
        if needs_spark(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TEST_TIMEOUT_S))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Groups go to the scheduler as a part of the names. Where they are lost nothing fails: each
    worker starts a broker and Spark of its own, and all take twice as long."""
    if node.config.option.dist == "loadgroup" and ids and not any(map(_has_group, ids)):
        pytest.exit("pytest-xdist loses the groups of tests with this pytest; see pyproject", 4)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> None:
    if fixturedef.argname in (*BROKER_FIXTURES, SPARK_FIXTURE):
        _running_fixtures[fixturedef.argname] = partial(fixturedef.finish, request)


@pytest.hookimpl(trylast=True)  # after the fixtures that use them
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Brokers and Spark end with their group. Without groups they end with the session.

    So does the broker of Spark's jobs: clients of theirs outlive them, and each would say again and
    again that it is gone.
    """
    if nextitem is None or not _has_group(item.nodeid):
        return
    group = _get_group(item.nodeid)
    if group != _get_group(nextitem.nodeid):
        if group.startswith(SPARK_GROUP_PREFIX):
            _running_fixtures.pop("session_kafka", None)
        while _running_fixtures:
            _running_fixtures.popitem()[1]()


def estimate_start(item: pytest.Item) -> int:
    """Sort key: the groups that take longest begin, and what is begun last is short."""
    if get_named_group(item):
        return -1
    group = choose_group(item)
    if group in LONG_GROUPS:
        return LONG_GROUPS.index(group)
    return len(LONG_GROUPS) + (not item.nodeid.startswith(LONG_TEST_PATHS))


def get_named_group(item: pytest.Item) -> str | None:
    """The group that the test itself names."""
    mark = item.get_closest_marker("xdist_group")
    return None if mark is None else str(mark.args[0])


def choose_group(item: pytest.Item) -> str:
    group = _choose_whole_group(item)
    part, path = PARTS.get(group, ("", ""))
    return part if part and item.nodeid.startswith(path) else group


def _choose_whole_group(item: pytest.Item) -> str:
    needed: list[str] = getattr(item, "fixturenames", [])
    module = item.nodeid.partition("::")[0]
    broker = next((each for each in BROKER_FIXTURES if each in needed), None)
    if SPARK_FIXTURE in needed:
        return SPARK_AND_BROKER if broker else SPARK_FIXTURE
    if broker == "session_kafka" and needs_spark(item):
        return SPARK_PROCESSES
    if broker == "session_kafka" and module.startswith(E2E_PATH):
        return KAFKA_E2E
    return broker or module


def needs_spark(item: pytest.Item) -> bool:
    """Also as a process of its own."""
    marked = any("java17" in mark.args for mark in item.iter_markers("needs"))
    return marked or SPARK_FIXTURE in getattr(item, "fixturenames", [])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names as one may ask for them: without the group, which has done its service."""
    if _has_group(report.nodeid) and "PYTEST_XDIST_WORKER" not in os.environ:
        report.nodeid = report.nodeid[: report.nodeid.rfind("@")]


def _get_group(name: str) -> str:
    return name[name.rfind("@") + 1 :]


def _has_group(name: str) -> bool:
    return name.rfind("@") > name.rfind("]")  # a parameter may have one, too
