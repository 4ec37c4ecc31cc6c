from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.waiting import WAIT_TIMEOUT_S

from gateway.errors import PipelineError
from gateway.pipeline.reports import REFRESH_ALERT, Reports
from gateway.pipeline.tables.broadcast import RefreshedValue
from gateway.pipeline.tables.lookup import parse_json_column


class Source:
    """Versions 1, 2, ... or failures, as the test says."""

    def __init__(self) -> None:
        self.now, self.reads, self.fails = 1000.0, 0, False
        self.may = threading.Event()
        self.may.set()
        self.reports = Reports()

    def read(self) -> int:
        assert self.may.wait(WAIT_TIMEOUT_S)
        if self.fails:
            raise OSError("no such file\nand a trace")
        self.reads += 1
        return self.reads

    def refreshed(self, refresh: float = 60.0) -> RefreshedValue[int]:
        return RefreshedValue(
            self.read, refresh, job="enriched", reports=self.reports, clock=lambda: self.now
        )

    @property
    def alert(self) -> str | None:
        return self.reports.get_alerts("enriched").get(REFRESH_ALERT)


def met(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_first_read_is_waited_for_and_must_succeed():
    source = Source()
    source.fails = True
    refreshed = source.refreshed()
    with pytest.raises(PipelineError, match="of job enriched cannot be read: no such file; the"):
        refreshed.get_current()
    source.fails = False
    assert refreshed.get_current() == 1


def test_it_is_read_anew_in_the_background_at_half_its_age():
    source = Source()
    refreshed = source.refreshed()
    refreshed.get_current()
    source.now += 29.0
    assert (refreshed.get_current(), source.reads) == (1, 1)
    source.now += 1.0
    source.may.clear()
    assert refreshed.get_current() == 1  # while it is being read
    source.may.set()
    met(lambda: refreshed.get_current() == 2)


def test_one_that_is_too_old_is_waited_for():
    source = Source()
    refreshed = source.refreshed()
    refreshed.get_current()
    source.now += 60.0
    assert refreshed.get_current() == 2


def test_the_last_good_one_goes_on_where_reads_fail():
    source = Source()
    refreshed = source.refreshed()
    refreshed.get_current()
    source.fails = True
    source.now += 60.0
    assert refreshed.get_current() == 1
    assert "cannot be read: no such file" in (source.alert or "")
    assert refreshed.get_current() == 1  # nobody waits for it now, nor is it read at each batch
    source.fails = False
    source.now += 5.0
    refreshed.get_current()
    met(lambda: source.alert is None)
    assert refreshed.get_current() == 2


def test_a_query_that_reads_its_table_ends_the_alert_of_the_one_before():
    """A job that was started again kept the alert, although its new query had read the table."""
    source = Source()
    source.reports.raise_alert("enriched", REFRESH_ALERT, "its table cannot be read")
    assert source.refreshed().get_current() == 1
    assert source.alert is None


def test_what_a_type_cannot_express_is_null_and_does_not_end_the_job(spark: Any):
    """One such row made the table unreadable, and the job did not begin."""
    values = {
        "good": '{"name": "ann", "at": 1700000000000}',
        "far": '{"name": "bob", "at": 1700000000000000000, "when": 1700000000000, "n": 200}',
        "two": '{"name": "cat"}{"name": "dan"}',
        "open": '{"name": "cat"}}',
        "text": '{"name": "eve", "n": "x"}',
    }
    fields = {"name": "string", "at": "timestamp_ms", "when": "timestamp", "n": "tinyint"}
    held = spark.createDataFrame(list(values.items()), "key string, json string")
    rows = parse_json_column(held, "json", fields)
    found = {row.key: tuple(row)[1:] for row in rows.collect()}
    assert found["good"][0] == "ann"
    assert found["good"][1] is not None
    assert found["far"] == ("bob", None, None, None)
    assert found["two"] == found["open"] == (None, None, None, None)
    assert found["text"] == ("eve", None, None, None)
