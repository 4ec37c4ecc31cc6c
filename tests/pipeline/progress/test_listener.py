"""What running queries tell: Prometheus, a topic, the log, the doctor's file."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer
from support.brokers import embedded_kafka
from support.doctor_scenarios import read_stream, run_scenario
from support.query_progress import build_operator, build_progress
from support.waiting import block_until

from gateway.config.sections.pipelines import Pipelines, Sessions
from gateway.pipeline.doctor.diagnosis import diagnose
from gateway.pipeline.doctor.query_run import build_run
from gateway.pipeline.progress.listener import ProgressReporter, report_progress
from gateway.pipeline.progress.records import get_progress_path, read_records
from gateway.telemetry import logs

kafka = embedded_kafka({"progress": 1})

TWO = {"spark.sql.shuffle.partitions": "2"}


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    """The log is as it was after each test."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    logs.set_levels("info", {})
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def session(spark: Any) -> Any:
    """Listeners are a session's own."""
    made = spark.newSession()
    for key, value in TWO.items():
        made.conf.set(key, value)
    return made


@pytest.fixture
def told(session: Any, kafka: Any, tmp_path: Path) -> Iterator[ProgressReporter]:
    progress = {"listen": 0, "topic": "progress"}
    section = Pipelines.model_validate({"checkpoints": str(tmp_path), "progress": progress})
    with report_progress(section, (), {"bootstrap.servers": ",".join(kafka.bootstrap)}) as telling_:
        telling_.watch_session(session)
        yield telling_


def counted(session: Any, directory: Path, name: str) -> Any:
    """A query with state, under way."""
    from pyspark.sql import functions as F

    events = read_stream(session, 1000).withWatermark("timestamp", "1 second")
    rows = events.groupBy(F.window("timestamp", "1 second"), F.col("value") % 10).count()
    writer = rows.writeStream.format("noop").outputMode("append").queryName(name)
    return writer.option("checkpointLocation", str(directory / "v1")).start()


def scraped(told: ProgressReporter) -> dict[str, float]:
    text = httpx.get(f"http://127.0.0.1:{told.port}/metrics").text
    found = re.findall(r"^(\w+\{[^}]*\}) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_a_job_is_told_to_prometheus_a_topic_the_log_and_the_doctor(
    told, session, kafka, tmp_path, caplog
):
    logs.configure("json", "info")
    caplog.set_level(logging.INFO)
    query = counted(session, tmp_path, "counts")
    file = get_progress_path(str(tmp_path), "counts")
    block_until(lambda: len(read_records(file)) >= 3, "three batches are told")
    during = scraped(told)
    query.stop()
    block_until(lambda: scraped(told)['gateway_pipeline_running{job="counts"}'] == 0, "it is over")

    assert during['gateway_pipeline_running{job="counts"}'] == 1
    assert during['gateway_pipeline_starts_total{job="counts"}'] == 1
    batches = during['gateway_pipeline_batches_total{job="counts"}']
    assert batches >= 3
    assert during['gateway_pipeline_rows_total{job="counts"}'] == 1000 * batches
    operator = 'job="counts",operator="stateStoreSave"'
    assert during[f"gateway_pipeline_state_rows{{{operator}}}"] > 0
    assert during[f"gateway_pipeline_state_memory_bytes{{{operator}}}"] > 0
    assert during['gateway_pipeline_watermark_age_seconds{job="counts"}'] > 0
    phase = 'gateway_pipeline_batch_seconds_count{job="counts",phase="addBatch"}'
    assert during[phase] == batches

    (first, *_) = read_records(file)
    tasks = first["tasks"]
    assert tasks["cores"] == 2 and len(tasks["stages"]) == 2
    reads, keeps = tasks["stages"]
    assert reads["rows"] == 1000 and not reads["shuffles"] and not reads["last"]
    assert keeps["tasks"] == 2 and keeps["shuffles"] and keeps["last"]
    assert 0 < keeps["slowest"] <= keeps["total"]

    records = consumed(",".join(kafka.bootstrap), "progress", 3)
    assert {key for key, _ in records} == {"counts"}
    assert [value["batchId"] for _, value in records] == [0, 1, 2]
    assert records[0][1]["job"] == "counts"


def test_tasks_are_looked_at_once_in_a_while(tmp_path: Path):
    """Not in each batch, and not in one without input; each job for itself."""
    asked = []

    class Tasks:
        def read_batch(self, run_id: str, batch: int) -> None:
            asked.append((run_id, batch))

    tasks: Any = Tasks()
    section = Pipelines(checkpoints=str(tmp_path))
    with report_progress(section, (), task_interval_s=3600, task_reader=tasks) as told:
        for batch in range(4):
            for job in ("a", "b"):
                told.on_query_progress(
                    build_progress(batch, rows=batch) | {"name": job, "id": job, "runId": job}
                )
    assert asked == [("a", 1), ("b", 1)]
    assert [each["batchId"] for each in read_records(get_progress_path(str(tmp_path), "a"))] == [
        0,
        1,
        2,
        3,
    ]


def test_a_record_has_the_alerts_of_its_job(tmp_path: Path):
    """Alerts were metrics and lines of the log only, so no page could show them."""
    with report_progress(Pipelines(checkpoints=str(tmp_path)), ()) as told:
        for batch, dropped in enumerate((0, 900)):
            for job, late in (("a", dropped), ("b", 0)):
                operators = [build_operator(dropped_count=late)]
                progress = build_progress(batch, rows=1000, operators=operators)
                told.on_query_progress(progress | {"name": job, "id": job, "runId": job})
    before, after = read_records(get_progress_path(str(tmp_path), "a"))
    assert before["alerts"] == {} and list(after["alerts"]) == ["late"]
    assert "too late" in after["alerts"]["late"]
    assert all(each["alerts"] == {} for each in read_records(get_progress_path(str(tmp_path), "b")))


def test_lines_of_the_log_have_job_query_run_and_batch(told, session, tmp_path, capsys):
    logs.configure("json", "info")
    query = counted(session, tmp_path, "lines")
    block_until(
        lambda: len(read_records(get_progress_path(str(tmp_path), "lines"))) >= 1, "a batch is told"
    )
    query.stop()
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines() if "rows in" in line]
    assert said[0]["job"] == "lines" and said[0]["batch"] == 0
    assert said[0]["query"] == str(query.id) and said[0]["run"] == str(query.runId)
    assert said[0]["message"].startswith("1,000 rows in ")


def test_a_query_that_fails_is_counted_by_its_error(told, session, tmp_path):
    from pyspark.sql import functions as F

    rows = read_stream(session, 10).select(F.assert_true(F.col("value") < 5))
    writer = rows.writeStream.format("noop").queryName("fails")
    query = writer.option("checkpointLocation", str(tmp_path / "v1")).start()
    block_until(lambda: query.exception() is not None, "it fails")

    def failures() -> float:
        return sum(v for k, v in scraped(told).items() if "pipeline_failures" in k and "fails" in k)

    block_until(lambda: failures() == 1, "its failure is counted")


def test_late_rows_of_a_running_job_are_an_alert_and_a_cause(spark: Any, tmp_path: Path):
    """A run that is planted, live."""
    records = read_records(run_scenario(spark, "late-drops", tmp_path))
    assert "late-drops" in [cause.name for cause in diagnose(build_run(records)).causes]
    assert "late" in records[-1]["alerts"]


def consumed(servers: str, topic: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "t", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        found = consumer.consume(count, timeout=60)
        return [(each.key().decode(), json.loads(each.value())) for each in found]
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("options", "fate"),
    [
        ({}, "written to clicks.dlq, each with the reason"),
        ({"onInvalid": "skip"}, "left out; onInvalid: dead-letter would write them to a topic"),
    ],
)
def test_invalid_records_are_counted_in_the_line_of_their_batch(tmp_path, caplog, options, fate):
    """The line of a batch counted them as rows, and no other line said that they were left out.
    Then one said that they were left out where they were in the topic of dead letters."""
    caplog.set_level(logging.INFO)
    job = Sessions.model_validate(
        {
            **{"name": "orders", "type": "sessions", "by": ["user"], "to": {"topic": "visits"}},
            "from": {"topic": "clicks", "value": {"fields": {"user": "string"}}, **options},
        }
    )
    observed = {"observedMetrics": {"from": {"rows": 5, "invalid": 1}}}
    with report_progress(Pipelines(checkpoints=str(tmp_path)), (job,)) as reporter:
        for batch in range(2):
            reporter.on_query_progress(build_progress(batch, rows=5) | observed)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("5 rows in 2.00 s, 1 invalid" in line for line in lines) == 2
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    (warning,) = (each.getMessage() for each in warnings)
    assert warning == f"invalid records of the input 'from': 1, {fate}"
