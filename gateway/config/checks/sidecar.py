"""Check the sidecar against its cluster, guards, catalog and the listening address.

The checks work on the values as written, as in `crosscheck`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.source.substitution import UnresolvedText, safe_repr, suggest
from gateway.config.types.address import is_loopback
from gateway.config.types.formats import SerializationFormat
from gateway.config.types.section import Problem, as_mapping

from .clusters import iter_clusters
from .guards import check_guarded

SECTION_PATHS: Mapping[str, frozenset[str]] = {
    "producer": frozenset({"producers"}),
    "consumer": frozenset({"consumers", "topics", "brokers"}),
    "reactive": frozenset({"reactive"}),
    "deadLetter": frozenset({"consumers"}),
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


def check_sidecar(raw: Mapping[str, Any]) -> Iterator[Problem]:
    if not isinstance(raw.get("sidecar"), Mapping):
        return
    written = as_mapping(raw.get("sidecar"))
    for problem in check_guarded(raw, written):
        yield problem._replace(loc=("sidecar", *problem.loc))
    yield from _check_exposed(raw, written)
    yield from _check_cluster(raw, written)
    yield from _check_catalog(raw, written)
    workers = as_mapping(raw.get("listen")).get("workers", 1)
    has_workers = str(workers) != "1" and not isinstance(workers, UnresolvedText)
    if has_workers:
        yield from _check_workers(written)
    yield from _check_reactive(raw, written, has_workers)


def _check_workers(section: Mapping[Any, Any]) -> Iterator[Problem]:
    """Yield the parts that work in one process only, so not with several workers."""
    if "consumer" in section:
        what = "instances of consumers live in one process, and their requests would meet others"
        hint = "set listen.workers: 1, and run more replicas with consumer.baseUri"
        yield Problem(("sidecar", "consumer"), f"{what}; {hint}", is_key=True)
    if as_mapping(section.get("ksqldb")).get("queries"):
        what = "each worker would ask every query, and the back end get all rows from each"
        yield Problem(
            ("sidecar", "ksqldb", "queries"), f"{what}; set listen.workers: 1", is_key=True
        )
    if as_mapping(section.get("admin")).get("chaos") in (True, "true"):
        what = "each worker has a chaos monkey, and a request to switch one off may reach another"
        yield Problem(("sidecar", "admin", "chaos"), f"{what}; set listen.workers: 1", is_key=True)


def _check_exposed(raw: Mapping[str, Any], section: Mapping[Any, Any]) -> Iterator[Problem]:
    """Yield a problem if other machines reach a sidecar without guards by accident."""
    host = as_mapping(raw.get("listen")).get("host", "127.0.0.1")
    if not isinstance(host, str) or isinstance(host, UnresolvedText) or is_loopback(host):
        return
    allowed = section.get("exposed") in (True, "true")
    if (
        not allowed
        and not as_mapping(section.get("guarded"))
        and SECTION_PATHS.keys() & section.keys()
    ):
        yield Problem(("sidecar",), EXPOSED_MESSAGE, is_key=True)


def is_sidecar_path(raw: Mapping[str, Any], path: str) -> bool:
    written = raw.get("sidecar")
    if not isinstance(written, Mapping):
        return False
    first = path[1:].partition("/")[0]
    return path in ALWAYS_SERVED_PATHS or any(
        first in SECTION_PATHS.get(str(name), ()) for name in written
    )


def _check_reactive(
    raw: Mapping[str, Any], section: Mapping[Any, Any], has_workers: bool
) -> Iterator[Problem]:
    groups = as_mapping(section.get("reactive")).get("groups")
    is_single = isinstance(groups, Mapping)
    for index, group in enumerate(groups if isinstance(groups, (list, tuple)) else [groups]):
        loc = ("sidecar", "reactive", "groups", *(() if is_single else (index,)))
        if has_workers and as_mapping(group).get("instanceId"):
            what = "each worker would be the same static member, and put the others out"
            yield Problem((*loc, "instanceId"), f"{what}; set listen.workers: 1", is_key=True)
        for name in ("keyFormat", "valueFormat"):
            written = as_mapping(group).get(name)
            format = SerializationFormat.find(written)
            if format and format.has_schema and not as_mapping(raw.get("catalogs")):
                what = f"no record can be read as {written} without its schema"
                yield Problem((*loc, name), f"{what}; add a registry to catalogs")


def _check_cluster(raw: Mapping[str, Any], section: Mapping[Any, Any]) -> Iterator[Problem]:
    names = [name for _, name, _ in iter_clusters(raw)]
    wanted = section.get("kafka")
    if wanted is None and len(names) > 1:
        choice = " or ".join(f"kafka: {name}" for name in names)
        yield Problem(("sidecar",), f"there are several clusters; add {choice}", is_key=True)
    elif isinstance(wanted, str) and names == [""]:
        what = "'kafka' chooses among several, and there is one; remove it"
        yield Problem(("sidecar", "kafka"), what, is_key=True)
    elif isinstance(wanted, str) and not isinstance(wanted, UnresolvedText) and wanted not in names:
        near = suggest(wanted, names, "add it to kafka")
        yield Problem(("sidecar", "kafka"), f"unknown cluster {safe_repr(wanted)}; {near}")


def _check_catalog(raw: Mapping[str, Any], section: Mapping[Any, Any]) -> Iterator[Problem]:
    names = [str(name) for name in as_mapping(raw.get("catalogs"))]
    wanted = section.get("catalog")
    if wanted is None and len(names) > 1:
        choice = " or ".join(f"catalog: {name}" for name in names)
        yield Problem(("sidecar",), f"there are several catalogs; add {choice}", is_key=True)
    elif isinstance(wanted, str) and not isinstance(wanted, UnresolvedText) and wanted not in names:
        near = suggest(wanted, names, "add it to catalogs")
        yield Problem(("sidecar", "catalog"), f"unknown catalog {safe_repr(wanted)}; {near}")
