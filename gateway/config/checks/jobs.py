"""What must agree between jobs and the rest of a configuration: names, catalogs, clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from gateway.config.source.expression import suggest
from gateway.config.source.substitution import safe_repr
from gateway.config.types.section import Problem

Loc = tuple[str | int, ...]
INPUT_OPTIONS = ("from", "left", "right")
MAX_TOPIC_NAME_CHARS = 249  # characters of the name of a topic, as Kafka takes them
# What jobs append to the names of topics for those that they write beside their rows.
INPUT_SUFFIXES = (".dlq", ".late")
OUTPUT_SUFFIXES = (".ledger", ".gaps", ".dlq")


def check_jobs(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Every disagreement, with the way to it; the values may be wrong in any way."""
    written = _as_mapping(raw.get("pipelines")).get("jobs")
    first: dict[str, int] = {}
    for index, job in enumerate(written if isinstance(written, list) else ()):
        way: Loc = ("pipelines", "jobs", index)
        name = _as_mapping(job).get("name")
        if isinstance(name, str):
            if name in first:
                what = f"'{name}' is the name of jobs[{first[name]}], too; give it another"
                yield Problem((*way, "name"), what)
            first.setdefault(name, index)
        checks = (
            _check_realtime(_as_mapping(job)),
            _check_references(raw, _as_mapping(job)),
            _check_cycle(_as_mapping(job)),
        )
        for problem in chain(*checks, _check_lengths(_as_mapping(job))):
            yield problem._replace(loc=(*way, *problem.loc))


def _check_realtime(job: Mapping[str, Any]) -> Iterator[Problem]:
    """Real-time mode has no foreachBatch, so no transactions."""
    guarantee = _as_mapping(job.get("to")).get("guarantee", "exactly-once")
    if job.get("trigger") == "realtime" and guarantee == "exactly-once":
        what = "realtime writes as it reads, which no transaction can hold together"
        yield Problem(("trigger",), f"{what}; add guarantee: at-least-once to 'to'")


def _check_references(raw: Mapping[str, Any], job: Mapping[str, Any]) -> Iterator[Problem]:
    catalogs = [str(name) for name in _as_mapping(raw.get("catalogs"))]
    kafka = _as_mapping(raw.get("kafka"))
    clusters = [] if "servers" in kafka else [str(name) for name in kafka]
    for way, part in _iter_inputs_and_outputs(job):
        for at, holder in (((), part), (("value",), _as_mapping(part.get("value")))):
            catalog = holder.get("catalog")
            if isinstance(catalog, str) and catalog not in catalogs:
                hint = suggest(catalog, catalogs, "add it to catalogs")
                yield Problem(
                    (*way, *at, "catalog"), f"unknown catalog {safe_repr(catalog)}; {hint}"
                )
        named = part.get("kafka")
        if isinstance(named, str) and named not in clusters:
            hint = suggest(named, clusters, "there is one, which needs no name: remove it")
            yield Problem((*way, "kafka"), f"unknown cluster {safe_repr(named)}; {hint}")
        elif named is None and len(clusters) > 1 and "topic" in part:
            what = f"'kafka' is missing, there are several; add one of {', '.join(clusters)}"
            yield Problem(way, what, is_key=True)


def _iter_inputs_and_outputs(job: Mapping[str, Any]) -> Iterator[tuple[Loc, Mapping[str, Any]]]:
    for name in (*INPUT_OPTIONS, "to"):
        if name in job:
            yield (name,), _as_mapping(job[name])
    for name, table in _as_mapping(job.get("tables")).items():
        yield ("tables", name), _as_mapping(table)


def _check_cycle(job: Mapping[str, Any]) -> Iterator[Problem]:
    to = _as_mapping(job.get("to"))
    read = [
        (part.get("kafka"), part.get("topic"))
        for way, part in _iter_inputs_and_outputs(job)
        if way != ("to",)
    ]
    if isinstance(to.get("topic"), str) and (to.get("kafka"), to["topic"]) in read:
        yield Problem(
            ("to", "topic"), f"the job reads {safe_repr(to['topic'])}, too; write to another"
        )


def _check_lengths(job: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield topics whose names leave no room for what a job appends: found when the first dead
    letter is written, it would end the job."""
    for way, part in _iter_inputs_and_outputs(job):
        topic = part.get("topic")
        suffixes = OUTPUT_SUFFIXES if way == ("to",) else INPUT_SUFFIXES
        longest = MAX_TOPIC_NAME_CHARS - max(map(len, suffixes))
        if isinstance(topic, str) and len(topic) > longest:
            what = f"the name has {len(topic)} characters; take one of at most {longest}"
            why = f"the job also writes to topics of this name with {' or '.join(suffixes)}"
            yield Problem((*way, "topic"), f"{what}, as {why}")


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
