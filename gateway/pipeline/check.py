"""Find the problems of jobs before Spark starts, without Java and pyspark.

`find_static_problems` reads the configuration only; `check_externals` also asks Kafka and the
schema registries. Problems are reported like those of the configuration: place, problem, remedy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from gateway.config import Settings, create_locator
from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Input, Job, Output
from gateway.config.types.formats import needs_catalog
from gateway.config.types.substitution import find_closest, suggest
from gateway.errors import ConfigError, FormatError, PipelineError, RegistryUnavailable
from gateway.pipeline import clusters

from .clusters import build_spark_options, find_cluster
from .inputs import schemas, source, types
from .job_settings import (
    Program,
    get_dead_letter_topic,
    get_inputs,
    get_output,
    has_side_outputs,
    list_read_topics,
    list_side_output_options,
    resolve_inputs,
)
from .jobs import import_job_module
from .spark import session

Loc = tuple[str | int, ...]
_OPTION_PREFIX = re.compile(r"([A-Za-z_][\w]*(?:\.[A-Za-z_][\w]*)*): ")


class JobProblem(NamedTuple):
    """A problem with its path in the file, such as ("pipelines", "jobs", 0, "from", "time")."""

    loc: Loc
    message: str


class ExternalCheck(NamedTuple):
    """The problems, and the checks that were skipped because a server does not answer."""

    problems: list[JobProblem]
    skipped_checks: list[str]


def raise_for_problems(
    file: str | os.PathLike[str], settings: Settings, jobs: Sequence[Job] | None = None
) -> None:
    """Raise a ConfigError with all static problems and their places, if there are any."""
    problems = find_static_problems(settings, jobs)
    if problems:
        raise ConfigError(format_problems(file, problems))


def format_problems(file: str | os.PathLike[str], problems: Iterable[JobProblem]) -> list[str]:
    locate = create_locator(file)
    return [locate(loc, message) for loc, message in problems]


def find_static_problems(settings: Settings, jobs: Sequence[Job] | None = None) -> list[JobProblem]:
    located = list(_iter_located_jobs(settings, jobs))
    return [
        *_check_conf(settings, [job for _, job in located]),
        *_check_loads(settings, [job for _, job in located]),
        *_check_topics(settings, located),
        *(
            problem._replace(loc=(*loc, *problem.loc))
            for loc, job in located
            for problem in _check_job(job, {})
        ),
    ]


def check_externals(settings: Settings, jobs: Sequence[Job] | None = None) -> ExternalCheck:
    """Compare jobs with Kafka's topics and the registries' schemas, without the static checks."""
    result = ExternalCheck([], [])
    outputs = (get_output(job) for _, job in _iter_located_jobs(settings, None))
    # The outputs of all jobs, because the jobs that are checked may read them before they exist.
    output_topics = {output.topic for output in outputs if output is not None}
    topics_by_cluster: dict[str | None, Collection[str] | None] = {}
    for loc, job in _iter_located_jobs(settings, jobs):
        resolved = _resolve_inputs(settings, job, loc, result)
        if resolved:
            static = {problem.message for problem in _check_job(job, {})}
            result.problems.extend(
                problem._replace(loc=(*loc, *problem.loc))
                for problem in _check_job(job, resolved)
                if problem.message not in static
            )
        for name, (kafka_name, topic) in list_read_topics(job).items():
            if kafka_name not in topics_by_cluster:
                topics_by_cluster[kafka_name] = _list_topics(settings, kafka_name, result)
            existing = topics_by_cluster[kafka_name]
            if existing is not None and topic not in {*existing, *output_topics}:
                # Topics that are unlike it are no help: whoever names a topic means it to exist.
                closest = find_closest(topic, [each for each in existing if each[:2] != "__"])
                hint = f"did you mean '{closest}'? If not, create it" if closest else "create it"
                message = f"Kafka has no topic '{topic}'; {hint}"
                result.problems.append(JobProblem((*loc, *_input_loc(job, name), "topic"), message))
    return result


def _iter_located_jobs(settings: Settings, jobs: Sequence[Job] | None) -> Iterator[tuple[Loc, Job]]:
    pipelines = settings.pipelines
    for index, job in enumerate(pipelines.jobs if pipelines is not None else ()):
        if jobs is None or job in jobs:
            yield ("pipelines", "jobs", index), job


_FIXED_CONF = {
    "spark.sql.session.timeZone": "windows and the times of rows are in UTC",
    "spark.sql.shuffle.partitions": "a job's state.partitions sets it",
    "spark.sql.streaming.minBatchesToRetain": "a job's state.retain sets it",
    "spark.sql.streaming.join.stateFormatVersion": "all checkpoints have one format",
    "spark.sql.streaming.stateStore.providerClass": "all checkpoints have one format",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "all checkpoints have one format",
}
"""Settings of Spark that `spark.conf` may not change, because the state or the meaning of rows
depends on them, and the reasons."""


def _check_conf(settings: Settings, jobs: Sequence[Job]) -> Iterator[JobProblem]:
    conf = {} if settings.pipelines is None else settings.pipelines.spark.conf
    required = [{**session.BASE_CONF, **session.build_job_conf(job)} for job in jobs]
    for name, reason in _FIXED_CONF.items():
        if name in conf and any(each[name].lower() != conf[name].lower() for each in required):
            yield JobProblem(("pipelines", "spark", "conf", name), f"{reason}; remove it")


def _check_loads(settings: Settings, jobs: Sequence[Job]) -> Iterator[JobProblem]:
    """Compare the keys that jobs write in Redis with those of the other jobs in the file."""
    every = _iter_located_jobs(settings, None)
    loads = [(loc, job) for loc, job in every if isinstance(job, config.Load)]
    for (loc, job), (_, other) in permutations(loads, 2):
        prefix, other_prefix = job.into.prefix, other.into.prefix
        is_same_server = job.into.url == other.into.url
        if job in jobs and is_same_server and prefix.startswith(other_prefix):
            message = f"'{prefix}' begins with '{other_prefix}', the prefix of job {other.name}"
            yield JobProblem((*loc, "into", "prefix"), f"{message}; use another one")


def _check_topics(settings: Settings, located: Sequence[tuple[Loc, Job]]) -> Iterator[JobProblem]:
    """Compare the topics of jobs with those that any job of the file writes beside its rows."""
    only = next(iter(settings.clusters))  # a single cluster need not be named
    writers = {
        (to.kafka or only, topic): job.name
        for _, job in _iter_located_jobs(settings, None)
        if (to := get_output(job)) is not None
        for topic in iter_side_topics(job, to)
    }
    for loc, job in located:
        to = get_output(job)
        if to is not None and (writer := writers.get((to.kafka or only, to.topic))):
            message = f"job {writer} writes others than rows to '{to.topic}'; write to another"
            yield JobProblem((*loc, "to", "topic"), message)
        for name, (kafka, topic) in list_read_topics(job).items():
            writer = writers.get((kafka or only, topic))
            if writer is not None and topic.endswith(".ledger"):
                message = f"'{topic}' is the ledger of job {writer}, not of rows; read another"
                yield JobProblem((*loc, *_input_loc(job, name), "topic"), message)


def iter_side_topics(job: Job, to: Output) -> Iterator[str]:
    """Yield the topics that a job writes beside its rows."""
    is_exactly_once = to.guarantee == "exactly-once"
    dead_letter_topic = get_dead_letter_topic(to.topic)
    if dead_letter_topic != to.topic and (is_exactly_once or needs_catalog(to.model)):
        yield dead_letter_topic
    if not (is_exactly_once or has_side_outputs(job)):
        return
    yield from (f"{to.topic}.ledger", f"{to.topic}.gaps")
    for each in get_inputs(job).values():
        if each.on_invalid == "dead-letter":
            yield f"{each.topic}.dlq"
        # Which rows of a program are late is only known to Spark.
        module = None if isinstance(job, Program) else import_job_module(job)
        if each.late == "topic" and hasattr(module, "select_late"):
            yield f"{each.topic}.late"


def _check_job(job: Job, resolved: Mapping[str, Input]) -> Iterator[JobProblem]:
    columns: dict[str, dict[str, str]] = {}
    for name, input in get_inputs(job).items():
        loc = _input_loc(job, name)
        is_parsed = not isinstance(job, config.Load)
        problems = [
            *_check_fields(input, is_parsed=is_parsed),
            *_check_columns(resolved.get(name, input)),
        ]
        yield from (each._replace(loc=(*loc, *each.loc)) for each in problems)
        # If the columns are unknown, `columns` lacks the input, and they are not checked.
        if _has_known_columns(resolved.get(name, input)):
            columns[name] = source.get_columns(resolved.get(name, input))
    module = import_job_module(job)
    yield from map(_parse_problem, module.check_job(job, columns))
    if job.trigger == "realtime":
        if reason := module.check_realtime(job):
            yield JobProblem(("trigger",), f"this job cannot run in real time: {reason}")
        yield from _check_realtime_options(job)


def check_input(input: Input) -> Iterator[JobProblem]:
    """Yield the problems of an input's columns; those of a schema are only known once resolved."""
    yield from _check_fields(input)
    yield from _check_columns(input)


def _has_known_columns(input: Input) -> bool:
    return bool(input.value.fields) or input.value.model == "string"


def _check_columns(input: Input) -> Iterator[JobProblem]:
    if not _has_known_columns(input):
        return
    columns = source.get_columns(input)
    yield from _check_time(input, columns)
    json_names = (input.value.json_names.get(each, each) for each in columns)
    if message := types.check_case(columns) or types.check_case(json_names):
        yield JobProblem(("value",), message)


def _check_fields(input: Input, *, is_parsed: bool = True) -> Iterator[JobProblem]:
    value = input.value
    for name, kind in value.fields.items():
        if message := types.check_type(kind):
            yield JobProblem(("value", "fields", name), message)
        if name in types.RECORD_COLUMN_TYPES:
            yield JobProblem(
                ("value", "fields", name), f"'{name}' is a column of every record; use another name"
            )
    if value.model == "json" and not value.fields and is_parsed:
        message = "JSON has no schema; name its columns, such as fields: {user: string}"
        yield JobProblem(("value",), message)
    if value.model == "string" and value.fields:
        yield JobProblem(("value", "fields"), "model string has one column, 'value'; remove fields")


def _check_realtime_options(job: Job) -> Iterator[JobProblem]:
    for name, input in resolve_inputs(job).items():
        for option in list_side_output_options(input):
            message = "not available in real-time mode; remove it, or use another trigger"
            yield JobProblem(
                (*_input_loc(job, name), Input.model_fields[option].alias or option), message
            )


def _check_time(input: Input, columns: Mapping[str, str]) -> Iterator[JobProblem]:
    kind = columns.get(input.time)
    if kind is None:
        hint = suggest(input.time, columns)
        yield JobProblem(("time",), f"there is no column '{input.time}'; {hint}")
    elif kind not in ("timestamp", "timestamp_ltz"):
        hint = "make it timestamp, or timestamp_ms if it is a number"
        yield JobProblem(("time",), f"'{input.time}' is of type {kind}; {hint}")


def _resolve_inputs(
    settings: Settings, job: Job, loc: Loc, check_result: ExternalCheck
) -> dict[str, Input]:
    """Return the inputs with a schema instead of `fields`; add errors to the result."""
    resolved: dict[str, Input] = {}
    for name, input in get_inputs(job).items():
        value = input.value
        if not needs_catalog(value.model) or value.fields:
            continue
        try:
            resolved[name] = schemas.resolve_fields(input, settings.catalogs)
        except FormatError as error:
            check_result.problems.append(
                JobProblem((*loc, *_input_loc(job, name), "value"), str(error))
            )
        except RegistryUnavailable as error:
            check_result.skipped_checks.append(f"schema of {input.topic}: {error}")
    return resolved


def _list_topics(
    settings: Settings, kafka_name: str | None, check_result: ExternalCheck
) -> Collection[str] | None:
    try:
        kafka = find_cluster(settings.clusters, kafka_name)
        build_spark_options(kafka)  # finds problems of its certificates
        return clusters.list_topics(kafka)
    except PipelineError as error:
        check_result.skipped_checks.append(f"topics: {error}")
        return None


def _input_loc(job: Job, name: str) -> Loc:
    return ("tables", name) if isinstance(job, config.Query) else (name,)


def _parse_problem(text: str) -> JobProblem:
    """Parse a problem of a job's module, which may begin with the path of an option and a colon."""
    prefix = _OPTION_PREFIX.match(text)
    return (
        JobProblem(tuple(prefix[1].split(".")), text[prefix.end() :])
        if prefix
        else JobProblem((), text)
    )
