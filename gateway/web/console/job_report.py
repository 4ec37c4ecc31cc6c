"""Describe Spark jobs by the records of their progress topic: the last batch, alerts, findings.

The findings are those of `gateway pipeline doctor`, which needs the records of a job's batches and
no Spark. Without I/O: `jobs` reads the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from gateway.config.sections.pipelines import Pipelines
from gateway.pipeline.doctor.cause import Thresholds
from gateway.pipeline.doctor.diagnosis import Diagnosis, diagnose
from gateway.pipeline.doctor.query_run import BatchProgress, build_run, parse_batch
from gateway.pipeline.doctor.report import to_json
from gateway.pipeline.listing import get_job_type


def build_jobs(section: Pipelines, values: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the configured jobs and those of the topic as JSON, sorted by name.

    The values are in order, the oldest first; those that are no progress are ignored.
    """
    records: dict[str, list[Mapping[str, Any]]] = {job.name: [] for job in section.jobs}
    for value in values:
        record = _parse_record(value)
        if record is not None:
            records.setdefault(record["job"], []).append(record)
    return [_describe_job(section, name, records[name]) for name in sorted(records)]


def _parse_record(value: bytes) -> dict[str, Any] | None:
    """Return a record of a batch; None for anything else that somebody wrote to the topic."""
    try:
        record = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("job"), str):
        return None
    durations = record.get("durationMs")
    # A trigger without new records has no `addBatch`.
    return record if isinstance(durations, dict) and "addBatch" in durations else None


def _describe_job(
    section: Pipelines, name: str, records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    job = section.find_job(name)
    described: dict[str, Any] = {
        "job": name,
        "type": None if job is None else get_job_type(job),
        "batch": None,
        "alerts": {},
        "causes": [],
        "unseen": {},
    }
    if not records:
        return described
    limits = Thresholds() if job is None else Thresholds(max_late_share=job.alert_late)
    try:
        batch = _describe_batch(parse_batch(records[-1]))
        diagnosis = _describe_diagnosis(diagnose(build_run(records), limits))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        # Of another version, or of another program.
        return described | {"problem": f"its progress cannot be read: {exc!r}"}
    alerts = records[-1].get("alerts")
    alerts = alerts if isinstance(alerts, dict) else {}
    return described | {"batch": batch, "alerts": alerts, **diagnosis}


def _describe_batch(batch: BatchProgress) -> dict[str, Any]:
    behind = [each.offsets_behind for each in batch.sources if each.offsets_behind is not None]
    return {
        "id": batch.id,
        "endedAt": batch.started_at + batch.seconds,
        "seconds": batch.seconds,
        "rows": batch.rows,
        "rowsPerSecond": batch.rows / batch.seconds if batch.seconds else None,
        "behind": sum(behind) if behind else None,
        "late": sum(each.dropped_rows for each in batch.operators),
        "invalid": batch.invalid_records,
        "stateRows": sum(each.rows for each in batch.operators),
    }


def _describe_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    found = to_json(diagnosis)
    return {"judged": diagnosis.batches, "causes": found["causes"], "unseen": found["unseen"]}
