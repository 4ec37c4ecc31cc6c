"""A job in the test's process and session of Spark, begun again as `pipeline run` does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from gateway.config import loads
from gateway.config.sections.pipelines import Pipelines
from gateway.pipeline.checkpoint.place import ready
from gateway.pipeline.exactly_once import beside
from gateway.pipeline.run import query
from gateway.pipeline.run.run import Run
from gateway.pipeline.spark.session import of_job
from gateway.pipeline.state import profiles

TIMEOUT_S = 600.0


def run_job(spark: Any, servers: list[str], root: Path, settings: dict[str, Any]) -> Run:
    """Run a job until it has ended; return its run.

    Args:
        spark: The session.
        servers: Of Kafka.
        root: Where its checkpoint is.
        settings: The job's, with `trigger: available-now`.
    """
    pipelines = {"checkpoints": str(root), "jobs": [settings]}
    loaded = loads(json.dumps({"kafka": {"servers": servers}, "pipelines": pipelines}))
    assert isinstance(loaded.pipelines, Pipelines)
    job = loaded.pipelines.jobs[0]
    place = ready(str(root), job, spark)
    session = of_job(spark, profiles.of(job))

    def start() -> Any:
        return query.start(session, job, loaded, place, unreadable=run.take_unreadable())

    run = Run(job, start, finish=lambda: beside.finish(place.query))
    deadline = time.monotonic() + TIMEOUT_S
    while not run.done:
        assert time.monotonic() < deadline, f"job {job.name} does not end"
        run.look()
        time.sleep(0.02)
    return run
