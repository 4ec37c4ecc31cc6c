"""A job in the test's process and session of Spark, begun again as `pipeline run` does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config import loads
from gateway.config.sections.pipelines import Pipelines
from gateway.pipeline.checkpoint.place import ready
from gateway.pipeline.exactly_once import beside
from gateway.pipeline.exactly_once.recreated import InputTopics
from gateway.pipeline.run import query
from gateway.pipeline.run.run import Run
from gateway.pipeline.spark.session import of_job
from gateway.pipeline.state import profiles

TIMEOUT_S = 600.0


@dataclass
class JobLoop:
    """A job that is looked at in turns, by the test's thread."""

    run: Run

    def look_until(self, is_met: Callable[[], bool], what: str) -> None:
        """Look at the job until a condition is met. what: named where it is not."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_met():
            assert time.monotonic() < deadline, f"job {self.run.job.name}: no {what}"
            assert not self.run.done, f"job {self.run.job.name} has ended: {self.run.reason}"
            self.run.look()
            time.sleep(0.02)


@contextmanager
def job_loop(
    spark: Any, servers: list[str], root: Path, settings: dict[str, Any]
) -> Iterator[JobLoop]:
    """Give a job that is not begun yet; stop it at last.

    Args:
        spark: The session.
        servers: Of Kafka.
        root: Where its checkpoint is.
        settings: The job's.
    """
    pipelines = {"checkpoints": str(root), "jobs": [settings]}
    loaded = loads(json.dumps({"kafka": {"servers": servers}, "pipelines": pipelines}))
    assert isinstance(loaded.pipelines, Pipelines)
    job = loaded.pipelines.jobs[0]
    place = ready(str(root), job, spark)
    session = of_job(spark, profiles.of(job))
    inputs: list[InputTopics] = []

    def start() -> Any:
        inputs[:] = [query.input_topics(job, loaded)]
        found = run.take_unreadable()
        return query.start(session, job, loaded, place, unreadable=found, inputs=inputs[0])

    run = Run(
        job,
        start,
        finish=lambda: beside.finish(place.query),
        have_inputs_changed=lambda: inputs[0].have_changed(),
    )
    try:
        yield JobLoop(run)
    finally:
        if not run.done:
            run.stop()
        query.close(place.query)


def run_job(spark: Any, servers: list[str], root: Path, settings: dict[str, Any]) -> Run:
    """Run a job until it has ended; return its run.

    Args:
        spark: The session.
        servers: Of Kafka.
        root: Where its checkpoint is.
        settings: The job's, with `trigger: available-now`.
    """
    with job_loop(spark, servers, root, settings) as loop:
        deadline = time.monotonic() + TIMEOUT_S
        while not loop.run.done:
            assert time.monotonic() < deadline, f"job {loop.run.job.name} does not end"
            loop.run.look()
            time.sleep(0.02)
    return loop.run
