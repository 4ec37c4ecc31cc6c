"""What is wrong with jobs, before Spark starts: no Java, no pyspark.

`static` looks at the configuration alone; `asked` at what Kafka and registries have. Problems are
told as those of the configuration: where in the file, what, what to do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.config import Settings, create_locator
from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Input, Job
from gateway.config.source.expression import suggest
from gateway.errors import ConfigError, FormatError, PipelineError, RegistryUnavailable
from gateway.pipeline.inputs import fields, schemas, types
from gateway.pipeline.run.query import import_job_module, list_side_output_options, resolve_inputs
from gateway.pipeline.spark import session
from gateway.pipeline.spark.client_config import build_spark_options, find_cluster
from gateway.pipeline.state import profiles

from . import topics
from .jobs import get_inputs, get_output

Loc = tuple[str | int, ...]
Columns = Mapping[str, Mapping[str, str]]
_OPTION_PREFIX = re.compile(r"([A-Za-z_][\w]*(?:\.[A-Za-z_][\w]*)*): ")


class JobProblem(NamedTuple):
    """A problem, and the way to it."""

    loc: Loc
    message: str


class ExternalCheck(NamedTuple):
    """problems: what does not go together. unknown: what could not be asked, and why."""

    problems: list[JobProblem]
    skipped_checks: list[str]


def raise_for_problems(
    file: str | os.PathLike[str], settings: Settings, jobs: Sequence[Job] | None = None
) -> None:
    """Raises ConfigError with every static problem, located. jobs: those looked at, if not all."""
    found = find_static_problems(settings, jobs)
    if found:
        raise ConfigError(format_problems(file, found))


def format_problems(file: str | os.PathLike[str], problems: Iterable[JobProblem]) -> list[str]:
    """One for each, located."""
    locate = create_locator(file)
    return [locate(way, message) for way, message in problems]


def find_static_problems(settings: Settings, jobs: Sequence[Job] | None = None) -> list[JobProblem]:
    """All that can be known without asking anybody."""
    located = list(_iter_located_jobs(settings, jobs))
    return [
        *_check_conf(settings, [job for _, job in located]),
        *(
            found._replace(loc=(*way, *found.loc))
            for way, job in located
            for found in _check_job(job, {})
        ),
    ]


def check_externals(settings: Settings, jobs: Sequence[Job] | None = None) -> ExternalCheck:
    """What Kafka and the registries know otherwise; who does not answer is told apart."""
    made = ExternalCheck([], [])
    outputs = (get_output(job) for _, job in _iter_located_jobs(settings, None))
    written = {each.topic for each in outputs if each is not None}
    known: dict[str, Mapping[str, int] | None] = {}
    for way, job in _iter_located_jobs(settings, jobs):
        derived = _load_schema_columns(settings, job, way, made)
        if derived:
            before = {each.message for each in _check_job(job, {})}
            again = (each for each in _check_job(job, derived) if each.message not in before)
            made.problems.extend(each._replace(loc=(*way, *each.loc)) for each in again)
        for name, each in resolve_inputs(job).items():
            _check_topic(settings, each, (*way, *_input_loc(job, name)), known, written, made)
    return made


def _iter_located_jobs(settings: Settings, jobs: Sequence[Job] | None) -> Iterator[tuple[Loc, Job]]:
    pipelines = settings.pipelines
    for index, job in enumerate(pipelines.jobs if pipelines is not None else ()):
        if jobs is None or job in jobs:
            yield ("pipelines", "jobs", index), job


_FIXED_CONF = {
    "spark.sql.session.timeZone": "windows and the times of rows are in UTC",
    "spark.sql.shuffle.partitions": "a job's state.partitions says it",
    "spark.sql.streaming.minBatchesToRetain": "a job's state.retain says it",
    "spark.sql.streaming.join.stateFormatVersion": "checkpoints are of one format",
    "spark.sql.streaming.stateStore.providerClass": "checkpoints are of one format",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "checkpoints are of one format",
}
"""What `spark.conf` may not set otherwise, as state or the meaning of rows depends on it."""


def _check_conf(settings: Settings, jobs: Sequence[Job]) -> Iterator[JobProblem]:
    given = {} if settings.pipelines is None else settings.pipelines.spark.conf
    ours = [{**session.BASE_CONF, **profiles.build_job_conf(job)} for job in jobs]
    for name, why in _FIXED_CONF.items():
        if name in given and any(each[name].lower() != given[name].lower() for each in ours):
            yield JobProblem(("pipelines", "spark", "conf", name), f"{why}; remove it")


def _check_job(job: Job, schema_columns: Columns) -> Iterator[JobProblem]:
    """derived: the columns of inputs with a schema, where they are known."""
    columns: dict[str, dict[str, str]] = {}
    for name, input in get_inputs(job).items():
        way = _input_loc(job, name)
        yield from (each._replace(loc=(*way, *each.loc)) for each in _check_input(job, input))
        if fields.get_fields(input, schema_columns.get(name)) or input.value.model == "string":
            columns[name] = fields.get_columns(input, schema_columns.get(name))
            yield from (
                each._replace(loc=(*way, *each.loc)) for each in _check_time(input, columns[name])
            )
    module = import_job_module(job)
    yield from (_parse_problem(text) for text in module.check_job(job, columns))
    if job.trigger == "realtime":
        if why := module.check_realtime(job):
            yield JobProblem(("trigger",), f"realtime is not for this job: {why}")
        yield from _check_realtime_options(job)


def _check_input(job: Job, input: Input) -> Iterator[JobProblem]:
    value = input.value
    for name, kind in value.fields.items():
        if wrong := types.check_type(kind):
            yield JobProblem(("value", "fields", name), wrong)
        if name in types.RECORD_COLUMN_TYPES:
            yield JobProblem(
                ("value", "fields", name), f"'{name}' is the record's own; use another name"
            )
    if value.model == "json" and not value.fields and not isinstance(job, config.Load):
        what = "JSON has no columns by itself; name them, such as fields: {user: string}"
        yield JobProblem(("value",), what)
    if value.model == "string" and value.fields:
        yield JobProblem(("value", "fields"), "model string has one column, 'value'; remove fields")


def _check_realtime_options(job: Job) -> Iterator[JobProblem]:
    for name, input in resolve_inputs(job).items():
        for option in list_side_output_options(input):
            what = "in real-time mode no such records are told; remove it, or take another trigger"
            yield JobProblem(
                (*_input_loc(job, name), Input.model_fields[option].alias or option), what
            )


def _check_time(input: Input, columns: Mapping[str, str]) -> Iterator[JobProblem]:
    kind = columns.get(input.time)
    if kind is None:
        hint = suggest(input.time, columns)
        yield JobProblem(("time",), f"there is no column '{input.time}'; {hint}")
    elif kind not in ("timestamp", "timestamp_ltz"):
        hint = "make it timestamp, or timestamp_ms of a number"
        yield JobProblem(("time",), f"'{input.time}' is of type {kind}; {hint}")


def _load_schema_columns(
    settings: Settings, job: Job, loc: Loc, check_result: ExternalCheck
) -> dict[str, dict[str, str]]:
    """The columns of inputs whose schema has them."""
    found: dict[str, dict[str, str]] = {}
    for name, input in get_inputs(job).items():
        value = input.value
        if not schemas.has_schema(value.model) or value.fields:
            continue
        try:
            catalog = settings.catalogs[value.catalog or ""]
            found[name] = schemas.fetch_schema_columns(input.topic, value, catalog)
        except FormatError as error:
            check_result.problems.append(
                JobProblem((*loc, *_input_loc(job, name), "value"), str(error))
            )
        except RegistryUnavailable as error:
            check_result.skipped_checks.append(f"schema of {input.topic}: {error}")
    return found


def _check_topic(
    settings: Settings,
    input: Input,
    loc: Loc,
    topics_by_cluster: dict[str, Mapping[str, int] | None],
    output_topics: set[str],
    check_result: ExternalCheck,
) -> None:
    """known: the topics of clusters asked before; None of those that do not answer."""
    name = input.kafka or ""
    if name not in topics_by_cluster:
        topics_by_cluster[name] = None
        try:
            kafka = find_cluster(settings.clusters, input.kafka)
            build_spark_options(kafka)
            topics_by_cluster[name] = topics.list_topics(kafka)
        except PipelineError as error:
            check_result.skipped_checks.append(f"topics: {error}")
    there = topics_by_cluster[name]
    if there is not None and input.topic not in there and input.topic not in output_topics:
        hint = suggest(input.topic, there, "make it")
        check_result.problems.append(
            JobProblem((*loc, "topic"), f"Kafka has no topic '{input.topic}'; {hint}")
        )


def _input_loc(job: Job, name: str) -> Loc:
    return ("tables", name) if isinstance(job, config.Query) else (name,)


def _parse_problem(text: str) -> JobProblem:
    """A job's own problem: it begins with its option, where it is about one."""
    found = _OPTION_PREFIX.match(text)
    return (
        JobProblem(tuple(found[1].split(".")), text[found.end() :])
        if found
        else JobProblem((), text)
    )
