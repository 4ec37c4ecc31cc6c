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
from gateway.pipeline.checkpoint.job_checkpoint import prepare_checkpoint
from gateway.pipeline.run import query
from gateway.pipeline.run.job_run import JobRun
from gateway.pipeline.spark.session import build_job_conf, create_job_session

JOB_TIMEOUT_S = 600.0


@dataclass
class JobLoop:
    """A job that is looked at in turns, by the test's thread."""

    run: JobRun

    def poll_until(self, is_met: Callable[[], bool], description: str) -> None:
        """Look at the job until a condition is met. what: named where it is not."""
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while not is_met():
            assert time.monotonic() < deadline, f"job {self.run.job.name}: no {description}"
            assert not self.run.is_done, (
                f"job {self.run.job.name} has ended: {self.run.failure_reason}"
            )
            self.run.poll()
            time.sleep(0.1)  # many conditions read a topic from its begin


@contextmanager
def create_job_loop(
    spark: Any,
    servers: list[str],
    checkpoint_root: Path,
    settings: dict[str, Any],
    *,
    fresh: bool = False,
) -> Iterator[JobLoop]:
    """Give a job that is not begun yet; stop it at last.

    Args:
        spark: The session.
        servers: Of Kafka.
        root: Where its checkpoint is.
        settings: The job's.
    """
    pipelines = {"checkpoints": str(checkpoint_root), "jobs": [settings]}
    loaded = loads(json.dumps({"kafka": {"servers": servers}, "pipelines": pipelines}))
    assert isinstance(loaded.pipelines, Pipelines)
    job = loaded.pipelines.jobs[0]
    place = prepare_checkpoint(str(checkpoint_root), job, spark, fresh=fresh)
    session = create_job_session(spark, build_job_conf(job))
    contexts: list[query.QueryContext] = []

    def start_query(_: JobRun) -> Any:
        context = query.QueryContext(session, job, loaded, place)
        close_contexts()
        contexts.append(context)
        return query.start_query(context)

    def close_contexts() -> None:
        while contexts:
            contexts.pop().close()

    def finish() -> None:
        if (side_outputs := contexts[0].side_outputs) is not None:
            side_outputs.finish()

    def scan_idle() -> None:
        if (side_outputs := contexts[0].side_outputs) is not None:
            side_outputs.scan_idle()

    run = JobRun(
        job,
        start_query,
        finish=finish,
        find_recreated=lambda: contexts[0].topics.find_recreated(),
        on_waiting=scan_idle,
    )
    try:
        yield JobLoop(run)
    finally:
        if not run.is_done:
            run.stop()
        close_contexts()


def run_until_ended(
    spark: Any,
    servers: list[str],
    checkpoint_root: Path,
    settings: dict[str, Any],
    *,
    fresh: bool = False,
) -> JobRun:
    """Run a job until it has ended; return its run.

    Args:
        spark: The session.
        servers: Of Kafka.
        root: Where its checkpoint is.
        settings: The job's, with `trigger: available-now`.
    """
    with create_job_loop(spark, servers, checkpoint_root, settings, fresh=fresh) as loop:
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while not loop.run.is_done:
            assert time.monotonic() < deadline, f"job {loop.run.job.name} does not end"
            loop.run.poll()
            time.sleep(0.02)
    return loop.run
