"""Check the sidecar, the jobs and the extras against the sections that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from gateway.config.types.address import is_loopback
from gateway.config.types.formats import needs_catalog
from gateway.config.types.section import Loc, Problem, nest
from gateway.config.types.substitution import safe_repr, suggest
from gateway.extras import describe_missing_extra

from .guard_checks import check_guarded
from .job import Input, Job, Output
from .sidecar import Consumer, Formats, Producer, Sidecar

if TYPE_CHECKING:
    from .settings import Settings

SECTION_PATHS: Mapping[str, frozenset[str]] = {
    "producer": frozenset({"producers"}),
    "consumer": frozenset({"consumers", "topics", "brokers"}),
    "reactive": frozenset({"reactive"}),
    "dead_letter": frozenset({"consumers"}),
    "replay": frozenset({"replays"}),
    "audit": frozenset({"consumers"}),
    "ksqldb": frozenset({"ksqldb"}),
    "admin": frozenset({"adm"}),
}
"""The first segments of paths, by the section that serves them."""
EXPOSED_MESSAGE = (
    "the sidecar asks nobody who they are, and listen.host lets other machines in; add "
    "sidecar.guarded, use 127.0.0.1, or add `exposed: true`"
)
ALWAYS_SERVED_PATHS = frozenset(
    {"/docs", "/docs.css", "/openapi.json", "/health/liveness", "/health/readiness"}
)
FORMAT_EXTRAS: Mapping[str | None, str] = {"avro": "avro", "protobuf": "protobuf"}
"""The extra with the codec of a format; other formats need none."""
MAX_TOPIC_NAME_CHARS = 249  # Kafka's limit of a topic's name
# Suffixes of the topics that jobs write in addition to their rows.
INPUT_SUFFIXES = (".dlq", ".late")
OUTPUT_SUFFIXES = (".ledger", ".gaps", ".dlq")


def is_sidecar_path(sidecar: Sidecar, path: str) -> bool:
    first = path[1:].partition("/")[0]
    return path in ALWAYS_SERVED_PATHS or any(
        first in segments and getattr(sidecar, name) is not None
        for name, segments in SECTION_PATHS.items()
    )


def check_sidecar(settings: Settings) -> Iterator[Problem]:
    sidecar = settings.sidecar
    if sidecar is None:
        return
    loc = ("sidecar",)
    yield from nest(loc, check_guarded(settings, sidecar.guarded))
    if sidecar.is_open and not is_loopback(settings.listen.host):
        needs = (("sidecar", "guarded"), ("sidecar", "exposed"))
        yield Problem(loc, EXPOSED_MESSAGE, is_key=True, needs=needs)
    for option, wanted, known in (
        ("kafka", sidecar.kafka, settings.clusters),
        ("catalog", sidecar.catalog, settings.catalogs),
    ):
        problems = check_name(option, wanted, known, is_optional=False)
        yield from nest(loc, problems, needs=(("sidecar", option),))
    if settings.listen.workers > 1:
        yield from nest(loc, _check_workers(sidecar))
    for place, group in sidecar.iter_groups():
        for option, name in (("keyFormat", group.key_format), ("valueFormat", group.value_format)):
            if needs_catalog(name) and not settings.catalogs:
                what = f"no record can be read as {name} without its schema"
                hint = "add a registry to catalogs"
                catalogs = (("catalogs", "*"),)
                yield Problem((*loc, *place, option), f"{what}; {hint}", needs=catalogs)


def check_name(
    option: str, wanted: str | None, known: Mapping[str, object], *, is_optional: bool = True
) -> Iterator[Problem]:
    """Yield the problem of the name of a cluster (`kafka`) or of a `catalog`.

    Args:
        is_optional: Whether it may be left out even if there are several.
    """
    noun, section = ("cluster", "kafka") if option == "kafka" else ("catalog", "catalogs")
    needs: tuple[Loc, ...] = ((section, wanted or ""),)
    if wanted is None and len(known) > 1 and not is_optional:
        choice = " or ".join(f"{option}: {name}" for name in known)
        yield Problem((), f"there are several {noun}s; add {choice}", is_key=True)
    elif wanted is not None and "" in known:
        what = "'kafka' chooses among several, and there is one; remove it"
        yield Problem((option,), what, is_key=True, needs=needs)
    elif wanted is not None and wanted not in known:
        near = suggest(wanted, known, f"add it to {section}")
        yield Problem((option,), f"unknown {noun} {safe_repr(wanted)}; {near}", needs=needs)


def _check_workers(sidecar: Sidecar) -> Iterator[Problem]:
    """Yield the parts that work in one process only, so not with several workers."""
    if sidecar.consumer is not None:
        what = "instances of consumers live in one process, and their requests would meet others"
        hint = "set listen.workers: 1, and run more replicas with consumer.baseUri"
        yield Problem(("consumer",), f"{what}; {hint}", is_key=True)
    if sidecar.ksqldb is not None and sidecar.ksqldb.queries:
        what = "each worker would ask every query, and the back end get all rows from each"
        yield Problem(("ksqldb", "queries"), f"{what}; set listen.workers: 1", is_key=True)
    if sidecar.admin is not None and sidecar.admin.chaos:
        what = "each worker has a chaos monkey, and a request to switch one off may reach another"
        yield Problem(("admin", "chaos"), f"{what}; set listen.workers: 1", is_key=True)
    for loc, group in sidecar.iter_groups():
        if group.instance_id:
            what = "each worker would be the same static member, and put the others out"
            yield Problem((*loc, "instanceId"), f"{what}; set listen.workers: 1", is_key=True)


def check_jobs(settings: Settings) -> Iterator[Problem]:
    jobs = () if settings.pipelines is None else settings.pipelines.jobs
    names = [job.name for job in jobs]
    for index, job in enumerate(jobs):
        loc: Loc = ("pipelines", "jobs", index)
        first = names.index(job.name)
        if first < index:
            what = f"'{job.name}' is the name of jobs[{first}], too; give it another"
            yield Problem((*loc, "name"), what, named=(*loc[:2], first))
        checks = (
            _check_writing(job, loc),
            _check_references(settings, job, loc),
            _check_lengths(job),
        )
        yield from nest(loc, chain(*checks))


def _iter_parts(job: Job) -> Iterator[tuple[Loc, Input | Output]]:
    for name in ("from", "left", "right", "to"):
        part = getattr(job, "from_" if name == "from" else name, None)
        if part is not None:
            yield (name,), part
    for name, table in getattr(job, "tables", {}).items():
        yield ("tables", name), table


def _check_writing(job: Job, job_loc: Loc) -> Iterator[Problem]:
    """Yield the problem of a job that writes what it reads, or in realtime exactly once.

    Spark's real-time mode has no foreachBatch, so there are no transactions.
    """
    to = getattr(job, "to", None)
    if job.trigger == "realtime" and (to is None or to.guarantee == "exactly-once"):
        what = "realtime writes as it reads, which no transaction can hold together"
        needs = ((*job_loc, "to", "guarantee"),)
        yield Problem(("trigger",), f"{what}; add guarantee: at-least-once to 'to'", needs=needs)
    inputs = [(part.kafka, part.topic) for _, part in _iter_parts(job) if part is not to]
    if to is not None and (to.kafka, to.topic) in inputs:
        what = f"the job reads {safe_repr(to.topic)}, too; write to another"
        places = [loc for loc, _ in _iter_parts(job)]
        yield Problem(
            ("to", "topic"), what, needs=tuple((*job_loc, *loc, "kafka") for loc in places)
        )


def _check_references(settings: Settings, job: Job, job_loc: Loc) -> Iterator[Problem]:
    clusters = list(filter(None, settings.clusters))
    for loc, part in _iter_parts(job):
        place, holder = ((*loc, "value"), part.value) if isinstance(part, Input) else (loc, part)
        yield from nest(place, check_name("catalog", holder.catalog, settings.catalogs))
        if part.kafka is not None and part.kafka not in clusters:
            hint = suggest(part.kafka, clusters, "there is one, which needs no name: remove it")
            what = f"unknown cluster {safe_repr(part.kafka)}; {hint}"
            yield Problem((*loc, "kafka"), what, needs=(("kafka", part.kafka),))
        elif part.kafka is None and len(clusters) > 1:
            what = f"'kafka' is missing, there are several; add one of {', '.join(clusters)}"
            yield Problem(loc, what, is_key=True, needs=((*job_loc, *loc, "kafka"),))


def _check_lengths(job: Job) -> Iterator[Problem]:
    """Yield topics whose names are too long for the suffixes that a job appends.

    Otherwise this would be found when the first dead letter is written, and would end the job.
    """
    for loc, part in _iter_parts(job):
        suffixes = OUTPUT_SUFFIXES if isinstance(part, Output) else INPUT_SUFFIXES
        max_length = MAX_TOPIC_NAME_CHARS - max(map(len, suffixes))
        if len(part.topic) > max_length:
            what = f"the name has {len(part.topic)} characters; take one of at most {max_length}"
            why = f"the job also writes to topics of this name with {' or '.join(suffixes)}"
            yield Problem((*loc, "topic"), f"{what}, as {why}")


def check_extras(settings: Settings) -> Iterator[Problem]:
    """Yield the options whose extra is not installed.

    The needs of jobs are checked when they run: `gateway pipeline check` and `list` need no extra.
    So are those of an embedded Kafka, which a librdkafka of the system can run, too.
    """
    for loc, extra in _iter_extras(settings):
        if problem := describe_missing_extra(extra):
            yield Problem(loc, problem)


def _iter_extras(settings: Settings) -> Iterator[tuple[Loc, str]]:
    formats: list[tuple[Loc, str | None]] = []
    for loc, kafka in settings.iter_clusters():
        for index, topic in enumerate(kafka.topics):
            place: Loc = (*loc, "topics", index)
            formats.append(((*place, "key", "model"), topic.key.model))
            formats.append(((*place, "value", "model"), topic.value.model))
    telemetry, sidecar = settings.telemetry, settings.sidecar
    for signal, otlp in (("metrics", telemetry.metrics.otlp), ("traces", telemetry.traces.otlp)):
        if otlp is not None:
            yield ("telemetry", signal, "otlp"), "otel"
    if sidecar is not None:
        if sidecar.ksqldb is not None and sidecar.ksqldb.model_fields_set:
            yield ("sidecar", "ksqldb"), "ksqldb"
        sections: dict[Loc, Producer | Consumer | Formats | None] = {
            ("sidecar", "producer"): sidecar.producer,
            ("sidecar", "consumer"): sidecar.consumer,
        }
        sections |= {("sidecar", "topics", topic): each for topic, each in sidecar.topics.items()}
        for place, section in sections.items():
            if section is not None:
                formats.append(((*place, "keyFormat"), section.key_format))
                formats.append(((*place, "valueFormat"), section.value_format))
    yield from ((loc, FORMAT_EXTRAS[name]) for loc, name in formats if name in FORMAT_EXTRAS)
