"""Check that jobs agree with other sections: names, catalogs, clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from gateway.config.source.substitution import safe_repr, suggest
from gateway.config.types.section import Problem, as_mapping

Loc = tuple[str | int, ...]
INPUT_OPTIONS = ("from", "left", "right")
MAX_TOPIC_NAME_CHARS = 249  # Kafka's limit of a topic's name
# Suffixes of the topics that jobs write in addition to their rows.
INPUT_SUFFIXES = (".dlq", ".late")
OUTPUT_SUFFIXES = (".ledger", ".gaps", ".dlq")


def check_jobs(raw: Mapping[str, Any]) -> Iterator[Problem]:
    written = as_mapping(raw.get("pipelines")).get("jobs")
    first_index: dict[str, int] = {}
    for index, job in enumerate(written if isinstance(written, list) else ()):
        loc: Loc = ("pipelines", "jobs", index)
        name = as_mapping(job).get("name")
        if isinstance(name, str):
            if name in first_index:
                what = f"'{name}' is the name of jobs[{first_index[name]}], too; give it another"
                yield Problem((*loc, "name"), what)
            first_index.setdefault(name, index)
        checks = (
            _check_realtime(as_mapping(job)),
            _check_references(raw, as_mapping(job)),
            _check_cycle(as_mapping(job)),
        )
        for problem in chain(*checks, _check_lengths(as_mapping(job))):
            yield problem._replace(loc=(*loc, *problem.loc))


def _check_realtime(job: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem if a realtime job is exactly-once.

    Spark's real-time mode has no foreachBatch, so there are no transactions.
    """
    guarantee = as_mapping(job.get("to")).get("guarantee", "exactly-once")
    if job.get("trigger") == "realtime" and guarantee == "exactly-once":
        what = "realtime writes as it reads, which no transaction can hold together"
        yield Problem(("trigger",), f"{what}; add guarantee: at-least-once to 'to'")


def _check_references(raw: Mapping[str, Any], job: Mapping[str, Any]) -> Iterator[Problem]:
    catalogs = [str(name) for name in as_mapping(raw.get("catalogs"))]
    kafka = as_mapping(raw.get("kafka"))
    clusters = [] if "servers" in kafka else [str(name) for name in kafka]
    for loc, part in _iter_inputs_and_outputs(job):
        for suffix, holder in (((), part), (("value",), as_mapping(part.get("value")))):
            catalog = holder.get("catalog")
            if isinstance(catalog, str) and catalog not in catalogs:
                hint = suggest(catalog, catalogs, "add it to catalogs")
                yield Problem(
                    (*loc, *suffix, "catalog"), f"unknown catalog {safe_repr(catalog)}; {hint}"
                )
        cluster = part.get("kafka")
        if isinstance(cluster, str) and cluster not in clusters:
            hint = suggest(cluster, clusters, "there is one, which needs no name: remove it")
            yield Problem((*loc, "kafka"), f"unknown cluster {safe_repr(cluster)}; {hint}")
        elif cluster is None and len(clusters) > 1 and "topic" in part:
            what = f"'kafka' is missing, there are several; add one of {', '.join(clusters)}"
            yield Problem(loc, what, is_key=True)


def _iter_inputs_and_outputs(job: Mapping[str, Any]) -> Iterator[tuple[Loc, Mapping[str, Any]]]:
    for name in (*INPUT_OPTIONS, "to"):
        if name in job:
            yield (name,), as_mapping(job[name])
    for name, table in as_mapping(job.get("tables")).items():
        yield ("tables", name), as_mapping(table)


def _check_cycle(job: Mapping[str, Any]) -> Iterator[Problem]:
    to = as_mapping(job.get("to"))
    inputs = [
        (part.get("kafka"), part.get("topic"))
        for loc, part in _iter_inputs_and_outputs(job)
        if loc != ("to",)
    ]
    if isinstance(to.get("topic"), str) and (to.get("kafka"), to["topic"]) in inputs:
        yield Problem(
            ("to", "topic"), f"the job reads {safe_repr(to['topic'])}, too; write to another"
        )


def _check_lengths(job: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield topics whose names are too long for the suffixes that a job appends.

    Otherwise this would be found when the first dead letter is written, and would end the job.
    """
    for loc, part in _iter_inputs_and_outputs(job):
        topic = part.get("topic")
        suffixes = OUTPUT_SUFFIXES if loc == ("to",) else INPUT_SUFFIXES
        max_length = MAX_TOPIC_NAME_CHARS - max(map(len, suffixes))
        if isinstance(topic, str) and len(topic) > max_length:
            what = f"the name has {len(topic)} characters; take one of at most {max_length}"
            why = f"the job also writes to topics of this name with {' or '.join(suffixes)}"
            yield Problem((*loc, "topic"), f"{what}, as {why}")
