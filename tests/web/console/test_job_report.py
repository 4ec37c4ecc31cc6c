"""What is shown of jobs, by the records of their progress topic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.query_progress import build_kafka_source, build_operator, build_progress

from gateway.config.sections.pipelines import Pipelines
from gateway.web.console.kafka_lookup import build_jobs

JOB = {
    "name": "visits",
    "type": "sessions",
    "from": {"topic": "clicks", "time": "at", "value": {"fields": {"user": "string"}}},
    "by": ["user"],
    "to": {"topic": "visits"},
}
SECTION = Pipelines.model_validate({"jobs": [JOB]})


def encode(job: str, batch: int, **progress: Any) -> bytes:
    alerts = progress.pop("alerts", {})
    observed = {"observedMetrics": {"in": {"rows": 9, "invalid": progress.pop("invalid", 0)}}}
    record = {"job": job, **build_progress(batch, **progress), "name": job, "alerts": alerts}
    return json.dumps(record | observed).encode()


def describe(*values: bytes) -> dict[str, dict[str, Any]]:
    return {each["job"]: each for each in build_jobs(SECTION, values)}


def test_a_job_is_shown_by_its_last_batch():
    batches = [
        encode(
            "visits",
            batch,
            rows=1000 * batch,
            seconds=2.0,
            operators=[build_operator(dropped_count=batch)],
            sources=[build_kafka_source("clicks", end=10, latest=35)],
            invalid=4,
        )
        for batch in (1, 2)
    ]
    shown = describe(*batches)["visits"]
    assert shown["type"] == "sessions"
    batch = shown["batch"]
    assert (batch["id"], batch["rows"], batch["rowsPerSecond"]) == (2, 2000, 1000)
    assert (batch["seconds"], batch["behind"], batch["late"], batch["invalid"]) == (2.0, 25, 2, 4)


def test_a_job_without_records_is_listed_as_well():
    shown = describe()["visits"]
    assert shown["batch"] is None and shown["causes"] == []


def test_jobs_of_another_configuration_are_shown_by_name():
    shown = describe(encode("orders", 1))["orders"]
    assert shown["type"] is None and shown["batch"]["id"] == 1


def test_the_doctors_findings_and_alerts_are_shown():
    late = [build_operator(dropped_count=5000)]
    batches = [
        encode("visits", batch, operators=late, alerts={"late": "more than 20 % are late"})
        for batch in range(8)
    ]
    shown = describe(*batches)["visits"]
    assert shown["alerts"] == {"late": "more than 20 % are late"}
    (cause,) = [each for each in shown["causes"] if each["name"] == "late-drops"]
    assert cause["evidence"] and cause["advice"]
    # Times of tasks are in few records, and the page says what they are missed for.
    assert "skew" in shown["unseen"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"no json",
        b"[1]",
        b'"visits"',
        b"{}",
        b'{"job": 5, "durationMs": {"addBatch": 1}}',
        b'{"job": "visits", "durationMs": null}',
        b'{"job": "visits", "durationMs": 5}',
        b'{"job": "visits", "durationMs": "addBatch"}',
        b'{"job": "visits", "durationMs": ["addBatch"]}',
        b'{"job": "visits", "durationMs": {"triggerExecution": 3}}',
    ],
)
def test_what_is_no_progress_of_a_batch_is_ignored(value: bytes):
    """A number as `durationMs` ended the whole answer, and no job was shown."""
    shown = describe(encode("visits", 1), value)
    assert list(shown) == ["visits"] and shown["visits"]["batch"]["id"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"batchId": "x"},
        {"numInputRows": "many"},
        {"durationMs": {"addBatch": "long"}},
        {"timestamp": "yesterday"},
        {"sources": [5]},
        {"eventTime": 5},
    ],
)
def test_a_record_that_cannot_be_read_is_said_of_its_job_alone(fields: dict[str, Any]):
    broken = {"job": "broken", **build_progress(1), **fields}
    shown = describe(encode("visits", 1), json.dumps(broken).encode())
    assert "cannot be read" in shown["broken"]["problem"] and shown["broken"]["batch"] is None
    assert shown["visits"]["batch"]["id"] == 1
