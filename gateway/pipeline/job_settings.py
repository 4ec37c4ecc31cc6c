"""Answer what the settings of a job mean for all parts of the package, without Spark and Kafka."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Fields, Input, Job, Output

ORIGIN_HEADER, REASON_HEADER = "X-Origin-Topic", "X-Reason"
"""The headers of a dead letter with the topic that refused a row, and with the reason."""


class Program(Job):
    """A query whose rows a program computes, by `gateway.pipeline.write_exactly_once`."""

    tables: dict[str, Input] = Field(description="The topics that the rows are made of, by name.")
    to: Output = Field(description="The topic of the rows.")
    emit: Literal["final", "updates"] = Field(description="As of jobs of type query.")


def get_job_type(job: Job) -> str:
    # Each settings class is named after its type.
    return type(job).__name__.lower()


def get_inputs(job: Job) -> Mapping[str, Input]:
    """Return the inputs that a job reads as streams, by the names that `build` uses for them."""
    match job:
        case config.Join():
            return {"left": job.left, "right": job.right}
        case config.Query() | Program():
            return job.tables
        case config.Sessions() | config.Aggregate() | config.Enrich() | config.Load():
            return {"from": job.from_}
    raise TypeError(type(job).__name__)


def resolve_inputs(job: Job) -> Mapping[str, Input]:
    """Return the inputs of a job as they are read: `load` does not parse values or tombstones."""
    if isinstance(job, config.Load):
        plain = {"value": Fields(model="string"), "time": "_timestamp"}
        return {"from": job.from_.model_copy(update=plain)}
    return get_inputs(job)


def list_read_topics(job: Job) -> Mapping[str, tuple[str | None, str]]:
    """Return the cluster and the topic of each input, and of a broadcast table, by name."""
    read = {name: (each.kafka, each.topic) for name, each in get_inputs(job).items()}
    if isinstance(job, config.Enrich) and (topic := getattr(job.table, "topic", None)):
        read["table"] = job.from_.kafka, topic
    return read


def get_output(job: Job) -> Output | None:
    """Return the output of a job; None if it writes no topic."""
    return None if isinstance(job, config.Load) else getattr(job, "to", None)


def get_key_columns(job: Job) -> tuple[str, ...]:
    """Return the columns of the output's key: those of `to.key`, or those of the grouping."""
    to = get_output(job)
    if to is not None and to.key:
        return to.key
    match job:
        case config.Sessions() | config.Aggregate():
            return job.by
        case config.Join():
            return tuple(each for each in job.on if not job.select or each in job.select)
        case config.Enrich():
            return (job.on,)
    return ()


def list_side_output_options(input: Input) -> list[str]:
    """Return the names of the options of an input that explicitly enable side outputs."""
    enabling = {"late": "topic", "on_invalid": "dead-letter", "on_data_loss": "gap"}
    return [
        name
        for name, value in enabling.items()
        if name in input.model_fields_set and getattr(input, name) == value
    ]


def has_side_outputs(job: Job) -> bool:
    """Return whether a job with `at-least-once` has side outputs.

    They need a call of Python in each batch, so they must be enabled by an option.
    """
    return job.trigger != "realtime" and any(
        map(list_side_output_options, get_inputs(job).values())
    )


def retires_itself(job: Job) -> bool:
    """Return whether the batches of a job end in Python, and retire their query there."""
    if isinstance(job, config.Load):
        return True
    if isinstance(job, config.Enrich) and isinstance(job.table, config.Broadcast):
        return True
    to = get_output(job)
    assert to is not None
    return to.guarantee == "exactly-once" or has_side_outputs(job)


def get_dead_letter_topic(topic: str) -> str:
    """Return the topic of refused rows: the output itself if it is one of dead letters."""
    return topic if topic.endswith((".dlq", ".late")) else f"{topic}.dlq"


def build_dead_letter_headers(topic: str, reason: str) -> list[tuple[str, bytes]]:
    return [(ORIGIN_HEADER, topic.encode()), (REASON_HEADER, reason.encode("utf-8", "replace"))]


def local_path(location: str) -> Path | None:
    """Return the path of a local checkpoint, or None for URLs of other file systems."""
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    return None if re.match(r"[a-z][a-z0-9+.-]*://", location) else Path(location).resolve()
