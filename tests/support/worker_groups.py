"""Which worker a test goes to, where several share the work (`--dist loadgroup`).

A module's tests go to one worker, so that what it starts for all of them is started once. So do
those of three brokers, of secured ones, and of Spark, a JVM of 1 GB and 8 s, which has two groups:
one for each core. The groups that take longest start first, by `tests/durations.json`, which
`--record-durations` writes; without that option nothing here changes what a test does.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.tiers import SPARK_FIXTURE, get_fixtures, needs_spark

DURATIONS_PATH = Path(__file__).parent.parent / "durations.json"
SHARED_FIXTURES = ("session_kafka3", "session_secured", SPARK_FIXTURE)
SPARK_GROUPS = 2
# For a test that needs Spark. Where the machine did ten things for each core, one took 11 minutes.
SPARK_TEST_TIMEOUT_S = 1800.0
DEFAULT_MODULE_SECONDS = 1.0  # of one that is not in DURATIONS_PATH yet

_running_fixtures: dict[str, Callable[[], None]] = {}  # what ends each that is shared and runs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"write what each module took into {DURATIONS_PATH.name}",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than cores, for tests that wait. Those of a real Kafka and of tools wait longest."""
    cores = os.cpu_count() or 1
    tiers = set(config.getoption("tier") or ())
    return cores + (1 if tiers <= {"test", "spark"} else 3)


@pytest.hookimpl(tryfirst=True)  # before the groups become a part of the names
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seconds = read_durations()
    spark_groups = share_modules(
        {_get_module(item) for item in items if SPARK_FIXTURE in get_fixtures(item)}, seconds
    )
    totals: dict[str, float] = defaultdict(float)
    groups: dict[pytest.Item, str] = {}
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        group = str(mark.args[0]) if mark else choose_group(item, spark_groups)
        if not mark:
            item.add_marker(pytest.mark.xdist_group(group))
        if needs_spark(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TEST_TIMEOUT_S))
        groups[item] = group
    # In one order, or the sums differ in their last digit, and with them the order in each worker.
    for module, group in sorted({(_get_module(item), group) for item, group in groups.items()}):
        totals[group] += seconds.get(module, DEFAULT_MODULE_SECONDS)
    items.sort(key=lambda item: (-totals[groups[item]], groups[item]))


def choose_group(item: pytest.Item, spark_groups: Mapping[str, str]) -> str:
    fixtures = get_fixtures(item)
    if SPARK_FIXTURE in fixtures:
        return spark_groups[_get_module(item)]
    return next((each for each in SHARED_FIXTURES if each in fixtures), _get_module(item))


def share_modules(modules: set[str], seconds: Mapping[str, float]) -> dict[str, str]:
    """Share modules out among the sessions of Spark, so that all take about as long."""
    loads = dict.fromkeys((f"{SPARK_FIXTURE}_{number}" for number in range(SPARK_GROUPS)), 0.0)
    shared = {}
    for module in sorted(modules, key=lambda each: (-seconds.get(each, 0.0), each)):
        group = min(loads, key=lambda each: loads[each])
        loads[group] += seconds.get(module, DEFAULT_MODULE_SECONDS)
        shared[module] = group
    return shared


def read_durations() -> dict[str, float]:
    """Seconds of each module, as they were recorded last."""
    if not DURATIONS_PATH.exists():
        return {}
    recorded = json.loads(DURATIONS_PATH.read_text())
    return {module: row["seconds"] for module, row in recorded.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Groups go to the scheduler as a part of the names. Where they are lost nothing fails: each
    worker starts a broker and Spark of its own, and all take twice as long."""
    if node.config.option.dist == "loadgroup" and ids and not any(map(_has_group, ids)):
        pytest.exit("pytest-xdist loses the groups of tests with this pytest; see pyproject", 4)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> None:
    if fixturedef.argname in SHARED_FIXTURES:
        _running_fixtures[fixturedef.argname] = partial(fixturedef.finish, request)


@pytest.hookimpl(trylast=True)  # after the fixtures that use them
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what a group shares with its last test. Without groups it ends with the session."""
    if nextitem is None or not _has_group(item.nodeid):
        return
    if _get_group(item.nodeid) != _get_group(nextitem.nodeid):
        while _running_fixtures:
            _running_fixtures.popitem()[1]()


# -- durations ---------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the CPU seconds of the test, those of the processes it waited for included."""
    before = _read_cpu_seconds()
    try:
        return (yield)
    finally:
        item.config.stash.setdefault(CPU_SECONDS, defaultdict(float))[_get_module(item)] += (
            _read_cpu_seconds() - before
        )


CPU_SECONDS = pytest.StashKey[dict[str, float]]()


def _read_cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["cpu_seconds"] = dict(session.config.stash.get(CPU_SECONDS, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    totals = node.config.stash.setdefault(CPU_SECONDS, defaultdict(float))
    for module, seconds in getattr(node, "workeroutput", {}).get("cpu_seconds", {}).items():
        totals[module] += seconds


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write what each module took, beside what is known of those that did not run."""
    if not config.getoption("record_durations"):
        return
    recorded = json.loads(DURATIONS_PATH.read_text()) if DURATIONS_PATH.exists() else {}
    rows: dict[str, dict[str, float]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                row = rows.setdefault(
                    report.nodeid.partition("::")[0], {"tests": 0, "seconds": 0.0}
                )
                row["tests"] += report.when == "call"
                row["seconds"] += report.duration
    for module, row in rows.items():
        cpu = config.stash.get(CPU_SECONDS, {}).get(module, 0.0)
        recorded[module] = {**row, "seconds": round(row["seconds"], 1), "cpu": round(cpu, 1)}
    lines = (f"{json.dumps(module)}: {json.dumps(recorded[module])}" for module in sorted(recorded))
    DURATIONS_PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


# -- names -------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names as one may ask for them: without the group, which has done its service."""
    if _has_group(report.nodeid) and "PYTEST_XDIST_WORKER" not in os.environ:
        report.nodeid = report.nodeid[: report.nodeid.rfind("@")]


def _get_module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _get_group(name: str) -> str:
    return name[name.rfind("@") + 1 :]


def _has_group(name: str) -> bool:
    return name.rfind("@") > name.rfind("]")  # a parameter may have one, too
