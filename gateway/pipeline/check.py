"""What is wrong with jobs, before Spark starts: no Java, no pyspark.

`static` looks at the configuration alone; `asked` at what Kafka and registries have. Problems are
told as those of the configuration: where in the file, what, what to do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.config import Settings, locator
from gateway.config.sections import pipelines as config
from gateway.config.sections.pipeline import Input, Job
from gateway.config.source.expression import nearest
from gateway.errors import ConfigError, FormatError, PipelineError, RegistryUnavailable
from gateway.pipeline.inputs import fields, schemas, types
from gateway.pipeline.run.query import asked_beside, module_of, read
from gateway.pipeline.spark import session
from gateway.pipeline.spark.connect import cluster_of, spark_options
from gateway.pipeline.state import profiles

from . import topics
from .jobs import inputs, output

Way = tuple[str | int, ...]
Columns = Mapping[str, Mapping[str, str]]
_OPTION = re.compile(r"([A-Za-z_][\w]*(?:\.[A-Za-z_][\w]*)*): ")


class Found(NamedTuple):
    """A problem, and the way to it."""

    way: Way
    message: str


class Asked(NamedTuple):
    """problems: what does not go together. unknown: what could not be asked, and why."""

    problems: list[Found]
    unknown: list[str]


def refuse(
    file: str | os.PathLike[str], settings: Settings, jobs: Sequence[Job] | None = None
) -> None:
    """Raises ConfigError with every static problem, located. jobs: those looked at, if not all."""
    found = static(settings, jobs)
    if found:
        raise ConfigError(lines(file, found))


def lines(file: str | os.PathLike[str], found: Iterable[Found]) -> list[str]:
    """One for each, located."""
    locate = locator(file)
    return [locate(way, message) for way, message in found]


def static(settings: Settings, jobs: Sequence[Job] | None = None) -> list[Found]:
    """All that can be known without asking anybody."""
    located = list(_located(settings, jobs))
    return [
        *_conf(settings, [job for _, job in located]),
        *(
            found._replace(way=(*way, *found.way))
            for way, job in located
            for found in _of_job(job, {})
        ),
    ]


def asked(settings: Settings, jobs: Sequence[Job] | None = None) -> Asked:
    """What Kafka and the registries know otherwise; who does not answer is told apart."""
    made = Asked([], [])
    outputs = (output(job) for _, job in _located(settings, None))
    written = {each.topic for each in outputs if each is not None}
    known: dict[str, Mapping[str, int] | None] = {}
    for way, job in _located(settings, jobs):
        derived = _derived(settings, job, way, made)
        if derived:
            before = {each.message for each in _of_job(job, {})}
            again = (each for each in _of_job(job, derived) if each.message not in before)
            made.problems.extend(each._replace(way=(*way, *each.way)) for each in again)
        for name, each in read(job).items():
            _topic(settings, each, (*way, *_way(job, name)), known, written, made)
    return made


def _located(settings: Settings, jobs: Sequence[Job] | None) -> Iterator[tuple[Way, Job]]:
    pipelines = settings.pipelines
    for index, job in enumerate(pipelines.jobs if pipelines is not None else ()):
        if jobs is None or job in jobs:
            yield ("pipelines", "jobs", index), job


_FIXED = {
    "spark.sql.session.timeZone": "windows and the times of rows are in UTC",
    "spark.sql.shuffle.partitions": "a job's state.partitions says it",
    "spark.sql.streaming.minBatchesToRetain": "a job's state.retain says it",
    "spark.sql.streaming.join.stateFormatVersion": "checkpoints are of one format",
    "spark.sql.streaming.stateStore.providerClass": "checkpoints are of one format",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "checkpoints are of one format",
}
"""What `spark.conf` may not set otherwise, as state or the meaning of rows depends on it."""


def _conf(settings: Settings, jobs: Sequence[Job]) -> Iterator[Found]:
    given = {} if settings.pipelines is None else settings.pipelines.spark.conf
    ours = [{**session.BASE, **profiles.of(job)} for job in jobs]
    for name, why in _FIXED.items():
        if name in given and any(each[name].lower() != given[name].lower() for each in ours):
            yield Found(("pipelines", "spark", "conf", name), f"{why}; remove it")


def _of_job(job: Job, derived: Columns) -> Iterator[Found]:
    """derived: the columns of inputs with a schema, where they are known."""
    columns: dict[str, dict[str, str]] = {}
    for name, input in inputs(job).items():
        way = _way(job, name)
        yield from (each._replace(way=(*way, *each.way)) for each in _input(job, input))
        if fields.fields_of(input, derived.get(name)) or input.value.model == "string":
            columns[name] = fields.columns(input, derived.get(name))
            yield from (
                each._replace(way=(*way, *each.way)) for each in _time(input, columns[name])
            )
    module = module_of(job)
    yield from (_placed(text) for text in module.problems(job, columns))
    if job.trigger == "realtime":
        if why := module.realtime(job):
            yield Found(("trigger",), f"realtime is not for this job: {why}")
        yield from _untold(job)


def _input(job: Job, input: Input) -> Iterator[Found]:
    value = input.value
    for name, kind in value.fields.items():
        if wrong := types.problem(kind):
            yield Found(("value", "fields", name), wrong)
        if name in types.META:
            yield Found(
                ("value", "fields", name), f"'{name}' is the record's own; use another name"
            )
    if value.model == "json" and not value.fields and not isinstance(job, config.Load):
        what = "JSON has no columns by itself; name them, such as fields: {user: string}"
        yield Found(("value",), what)
    if value.model == "string" and value.fields:
        yield Found(("value", "fields"), "model string has one column, 'value'; remove fields")


def _untold(job: Job) -> Iterator[Found]:
    for name, input in read(job).items():
        for option in asked_beside(input):
            what = "in real-time mode no such records are told; remove it, or take another trigger"
            yield Found((*_way(job, name), Input.model_fields[option].alias or option), what)


def _time(input: Input, columns: Mapping[str, str]) -> Iterator[Found]:
    kind = columns.get(input.time)
    if kind is None:
        hint = nearest(input.time, columns)
        yield Found(("time",), f"there is no column '{input.time}'; {hint}")
    elif kind not in ("timestamp", "timestamp_ltz"):
        hint = "make it timestamp, or timestamp_ms of a number"
        yield Found(("time",), f"'{input.time}' is of type {kind}; {hint}")


def _derived(settings: Settings, job: Job, way: Way, made: Asked) -> dict[str, dict[str, str]]:
    """The columns of inputs whose schema has them."""
    found: dict[str, dict[str, str]] = {}
    for name, input in inputs(job).items():
        value = input.value
        if not schemas.has_schema(value.model) or value.fields:
            continue
        try:
            catalog = settings.catalogs[value.catalog or ""]
            found[name] = schemas.columns_of(input.topic, value, catalog)
        except FormatError as error:
            made.problems.append(Found((*way, *_way(job, name), "value"), str(error)))
        except RegistryUnavailable as error:
            made.unknown.append(f"schema of {input.topic}: {error}")
    return found


def _topic(
    settings: Settings,
    input: Input,
    way: Way,
    known: dict[str, Mapping[str, int] | None],
    written: set[str],
    made: Asked,
) -> None:
    """known: the topics of clusters asked before; None of those that do not answer."""
    name = input.kafka or ""
    if name not in known:
        known[name] = None
        try:
            kafka = cluster_of(settings.clusters, input.kafka)
            spark_options(kafka)
            known[name] = topics.present(kafka)
        except PipelineError as error:
            made.unknown.append(f"topics: {error}")
    there = known[name]
    if there is not None and input.topic not in there and input.topic not in written:
        hint = nearest(input.topic, there, "make it")
        made.problems.append(Found((*way, "topic"), f"Kafka has no topic '{input.topic}'; {hint}"))


def _way(job: Job, name: str) -> Way:
    return ("tables", name) if isinstance(job, config.Query) else (name,)


def _placed(text: str) -> Found:
    """A job's own problem: it begins with its option, where it is about one."""
    found = _OPTION.match(text)
    return Found(tuple(found[1].split(".")), text[found.end() :]) if found else Found((), text)
