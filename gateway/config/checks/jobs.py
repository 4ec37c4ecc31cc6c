"""What must agree between jobs and the rest of a configuration: names, catalogs, clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from gateway.config.source.expression import nearest
from gateway.config.source.substitution import shown
from gateway.config.types.section import Problem

Way = tuple[str | int, ...]
INPUTS = ("from", "left", "right")
MAX_NAME_LENGTH = 249  # characters of the name of a topic, as Kafka takes them
# What jobs append to the names of topics for those that they write beside their rows.
INPUT_SUFFIXES = (".dlq", ".late")
OUTPUT_SUFFIXES = (".ledger", ".gaps", ".dlq")


def jobs(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Every disagreement, with the way to it; the values may be wrong in any way."""
    written = _map(raw.get("pipelines")).get("jobs")
    first: dict[str, int] = {}
    for index, job in enumerate(written if isinstance(written, list) else ()):
        way: Way = ("pipelines", "jobs", index)
        name = _map(job).get("name")
        if isinstance(name, str):
            if name in first:
                what = f"'{name}' is the name of jobs[{first[name]}], too; give it another"
                yield Problem((*way, "name"), what)
            first.setdefault(name, index)
        checks = (_realtime(_map(job)), _named(raw, _map(job)), _circle(_map(job)))
        for problem in chain(*checks, _check_lengths(_map(job))):
            yield problem._replace(way=(*way, *problem.way))


def _realtime(job: Mapping[str, Any]) -> Iterator[Problem]:
    """Real-time mode has no foreachBatch, so no transactions."""
    guarantee = _map(job.get("to")).get("guarantee", "exactly-once")
    if job.get("trigger") == "realtime" and guarantee == "exactly-once":
        what = "realtime writes as it reads, which no transaction can hold together"
        yield Problem(("trigger",), f"{what}; add guarantee: at-least-once to 'to'")


def _named(raw: Mapping[str, Any], job: Mapping[str, Any]) -> Iterator[Problem]:
    catalogs = [str(name) for name in _map(raw.get("catalogs"))]
    kafka = _map(raw.get("kafka"))
    clusters = [] if "servers" in kafka else [str(name) for name in kafka]
    for way, part in _parts(job):
        for at, holder in (((), part), (("value",), _map(part.get("value")))):
            catalog = holder.get("catalog")
            if isinstance(catalog, str) and catalog not in catalogs:
                hint = nearest(catalog, catalogs, "add it to catalogs")
                yield Problem((*way, *at, "catalog"), f"unknown catalog {shown(catalog)}; {hint}")
        named = part.get("kafka")
        if isinstance(named, str) and named not in clusters:
            hint = nearest(named, clusters, "there is one, which needs no name: remove it")
            yield Problem((*way, "kafka"), f"unknown cluster {shown(named)}; {hint}")
        elif named is None and len(clusters) > 1 and "topic" in part:
            what = f"'kafka' is missing, there are several; add one of {', '.join(clusters)}"
            yield Problem(way, what, key=True)


def _parts(job: Mapping[str, Any]) -> Iterator[tuple[Way, Mapping[str, Any]]]:
    for name in (*INPUTS, "to"):
        if name in job:
            yield (name,), _map(job[name])
    for name, table in _map(job.get("tables")).items():
        yield ("tables", name), _map(table)


def _circle(job: Mapping[str, Any]) -> Iterator[Problem]:
    to = _map(job.get("to"))
    read = [(part.get("kafka"), part.get("topic")) for way, part in _parts(job) if way != ("to",)]
    if isinstance(to.get("topic"), str) and (to.get("kafka"), to["topic"]) in read:
        yield Problem(("to", "topic"), f"the job reads {shown(to['topic'])}, too; write to another")


def _check_lengths(job: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield topics whose names leave no room for what a job appends: found when the first dead
    letter is written, it would end the job."""
    for way, part in _parts(job):
        topic = part.get("topic")
        suffixes = OUTPUT_SUFFIXES if way == ("to",) else INPUT_SUFFIXES
        longest = MAX_NAME_LENGTH - max(map(len, suffixes))
        if isinstance(topic, str) and len(topic) > longest:
            what = f"the name has {len(topic)} characters; take one of at most {longest}"
            why = f"the job also writes to topics of this name with {' or '.join(suffixes)}"
            yield Problem((*way, "topic"), f"{what}, as {why}")


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
