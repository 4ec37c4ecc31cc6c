"""Which tests run, and when: `make test` runs one tier, `make test-all` those up to `clients`.

A test's tier follows from its fixtures and its marker `needs`; nobody lists tests. Two markers
overrule that: `smoke` brings a test of the real program or of a real Kafka into the first tier,
which has no other process; `night` puts one that takes long, or that measures, where nobody waits.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from support.brokers import has_kafka

TIERS = ("test", "kafka", "spark", "clients", "night")
BROKER_FIXTURES = frozenset({"session_kafka", "session_kafka3", "session_secured"})
SPARK_FIXTURE = "session_spark"
KAFKA_PIECES = frozenset({"kafka", "process"})

# What Python announces when a process is started, and what `support.gateways` announces.
PROCESS_EVENTS = frozenset(
    {
        *("subprocess.Popen", "os.posix_spawn", "os.system", "os.exec", "os.fork", "os.forkpty"),
        "gateway.tests.process",
    }
)

_guarded_test: str | None = None
_process_event = ""  # of a process that the test has started
_has_audit_hook = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        action="append",
        choices=TIERS,
        help="run only the tests of this tier, which may be given several times; default: all",
    )


def get_fixtures(item: pytest.Item) -> frozenset[str]:
    return frozenset(getattr(item, "fixturenames", ()))


def get_pieces(item: pytest.Item) -> frozenset[str]:
    """What its marks `needs` name."""
    return frozenset(piece for mark in item.iter_markers("needs") for piece in mark.args)


def needs_spark(item: pytest.Item) -> bool:
    """Also as a process of its own, and by night."""
    return "java17" in get_pieces(item) or SPARK_FIXTURE in get_fixtures(item)


def choose_tier(item: pytest.Item) -> str:
    pieces = get_pieces(item)
    if item.get_closest_marker("night"):
        return "night"
    if needs_spark(item):
        return "spark"
    if pieces - KAFKA_PIECES:
        return "clients"
    if item.get_closest_marker("smoke"):
        return "test"
    if pieces or get_fixtures(item) & BROKER_FIXTURES:
        return "kafka"
    return "test"


@pytest.hookimpl(wrapper=True)  # before the others are grouped
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Keep the tests of the tiers that were asked for, and count the others."""
    if wanted := config.getoption("tier"):
        _leave_out_others(config, items, wanted)
    return (yield)


def _leave_out_others(config: pytest.Config, items: list[pytest.Item], wanted: list[str]) -> None:
    kept, left_out = [], []
    for item in items:
        is_wanted = choose_tier(item) in wanted and _can_run(item)
        (kept if is_wanted else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
    config.stash[LEFT_OUT] = Counter(_describe_door(choose_tier(item), wanted) for item in left_out)


def _describe_door(tier: str, wanted: list[str]) -> str:
    """Say how the tests of a tier that are left out are run."""
    if tier in wanted:
        return "make test, with a Java 17"
    return "make test" if tier == "test" else f"make test-{tier}"


def _can_run(item: pytest.Item) -> bool:
    """Without a Java the first tier leaves out its tests of a real Kafka, but not in CI; no other
    tier does."""
    is_optional = item.get_closest_marker("smoke") and BROKER_FIXTURES & get_fixtures(item)
    return not is_optional or has_kafka() or os.environ.get("CI") == "true"


LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that writes the summary what this worker left out."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and LEFT_OUT in session.config.stash:
        output["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = Counter(left_out)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out = config.stash.get(LEFT_OUT, None)
    if left_out:
        parts = ", ".join(f"{count} ({door})" for door, count in sorted(left_out.items()))
        terminalreporter.write_line(f"not run: {parts}; make test-all runs all but the night's")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Fail a test of the first tier that starts a process without saying so."""
    global _guarded_test, _has_audit_hook, _process_event
    if not _has_audit_hook and item.config.getoption("tier") == ["test"]:
        _has_audit_hook = True
        sys.addaudithook(_refuse_process)
    _guarded_test = None if item.get_closest_marker("smoke") else item.nodeid
    _process_event = ""
    try:
        return (yield)
    finally:
        _guarded_test = None


def _refuse_process(event: str, arguments: tuple[Any, ...]) -> None:
    global _process_event
    if event in PROCESS_EVENTS and _guarded_test and os.getpid() == _pid:
        _process_event = event
        _fail_for_process()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Also where a thread or a task of the test started it, which nobody may hear fail."""
    if _process_event:
        _fail_for_process()


def _fail_for_process() -> None:
    pytest.fail(
        f'{_guarded_test} starts a process ({_process_event}): mark it `needs("process")`, or '
        "`smoke`",
        pytrace=False,
    )


_pid = os.getpid()
