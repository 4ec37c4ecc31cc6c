"""What must agree between the sidecar, the clusters, guards and catalogs that it names, and where
clients come in.

Works on the values as written, as `crosscheck`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.source.expression import nearest
from gateway.config.source.substitution import Unsettled, shown
from gateway.config.types.section import Problem

from .clusters import sections
from .guards import guarded, is_loopback

PATHS: Mapping[str, frozenset[str]] = {
    "producer": frozenset({"producers"}),
    "consumer": frozenset({"consumers", "topics", "brokers"}),
    "reactive": frozenset({"reactive"}),
    "deadLetter": frozenset({"consumers"}),
    "replay": frozenset({"replays"}),
    "audit": frozenset({"consumers"}),
    "ksqldb": frozenset({"ksqldb"}),
    "admin": frozenset({"adm"}),
}
"""First segments of paths, by the section that serves them."""
EXPOSED = (
    "the sidecar asks nobody who they are, and listen.host lets other machines in; add "
    "sidecar.guarded, use 127.0.0.1, or add `exposed: true`"
)
_WITH_SCHEMA = frozenset({"avro", "jsonschema", "protobuf", "1", "3", "4"})
ALWAYS = frozenset({"/docs", "/docs.css", "/openapi.json", "/health/liveness", "/health/readiness"})


def sidecar(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """What the sidecar needs of the other sections."""
    if not isinstance(raw.get("sidecar"), Mapping):
        return
    written = _map(raw.get("sidecar"))
    for problem in guarded(raw, written):
        yield problem._replace(way=("sidecar", *problem.way))
    yield from _exposed(raw, written)
    yield from _cluster(raw, written)
    yield from _catalog(raw, written)
    workers = _map(raw.get("listen")).get("workers", 1)
    several = str(workers) != "1" and not isinstance(workers, Unsettled)
    if several:
        yield from _several(written)
    yield from _reactive(raw, written, several)


def _several(written: Mapping[Any, Any]) -> Iterator[Problem]:
    """What is of one process only, and so nothing for several workers."""
    if "consumer" in written:
        what = "instances of consumers live in one process, and their requests would meet others"
        hint = "set listen.workers: 1, and run more replicas with consumer.baseUri"
        yield Problem(("sidecar", "consumer"), f"{what}; {hint}", key=True)
    if _map(written.get("ksqldb")).get("queries"):
        what = "each worker would ask every query, and the back end get all rows from each"
        yield Problem(("sidecar", "ksqldb", "queries"), f"{what}; set listen.workers: 1", key=True)
    if _map(written.get("admin")).get("chaos") in (True, "true"):
        what = "each worker has a chaos monkey, and a request to switch one off may reach another"
        yield Problem(("sidecar", "admin", "chaos"), f"{what}; set listen.workers: 1", key=True)


def _exposed(raw: Mapping[str, Any], written: Mapping[Any, Any]) -> Iterator[Problem]:
    """Whoever reaches the port may do all that the sidecar does: never by accident."""
    host = _map(raw.get("listen")).get("host", "127.0.0.1")
    if not isinstance(host, str) or isinstance(host, Unsettled) or is_loopback(host):
        return
    allowed = written.get("exposed") in (True, "true")
    if not allowed and not _map(written.get("guarded")) and PATHS.keys() & written.keys():
        yield Problem(("sidecar",), EXPOSED, key=True)


def takes(raw: Mapping[str, Any], path: str) -> bool:
    """Is a path the sidecar's?"""
    written = raw.get("sidecar")
    if not isinstance(written, Mapping):
        return False
    first = path[1:].partition("/")[0]
    return path in ALWAYS or any(first in PATHS.get(str(name), ()) for name in written)


def _reactive(
    raw: Mapping[str, Any], written: Mapping[Any, Any], several: bool
) -> Iterator[Problem]:
    """several: workers."""
    groups = _map(written.get("reactive")).get("groups")
    single = isinstance(groups, Mapping)
    for index, each in enumerate(groups if isinstance(groups, (list, tuple)) else [groups]):
        way = ("sidecar", "reactive", "groups", *(() if single else (index,)))
        if several and _map(each).get("instanceId"):
            what = "each worker would be the same static member, and put the others out"
            yield Problem((*way, "instanceId"), f"{what}; set listen.workers: 1", key=True)
        for name in ("keyFormat", "valueFormat"):
            format = str(_map(each).get(name, "")).lower()
            if format in _WITH_SCHEMA and not _map(raw.get("catalogs")):
                what = f"no record can be read as {format} without its schema"
                yield Problem((*way, name), f"{what}; add a registry to catalogs")


def _cluster(raw: Mapping[str, Any], written: Mapping[Any, Any]) -> Iterator[Problem]:
    names = [name for _, name, _ in sections(raw)]
    wanted = written.get("kafka")
    if wanted is None and len(names) > 1:
        choice = " or ".join(f"kafka: {name}" for name in names)
        yield Problem(("sidecar",), f"there are several clusters; add {choice}", key=True)
    elif isinstance(wanted, str) and names == [""]:
        what = "'kafka' chooses among several, and there is one; remove it"
        yield Problem(("sidecar", "kafka"), what, key=True)
    elif isinstance(wanted, str) and not isinstance(wanted, Unsettled) and wanted not in names:
        near = nearest(wanted, names, "add it to kafka")
        yield Problem(("sidecar", "kafka"), f"unknown cluster {shown(wanted)}; {near}")


def _catalog(raw: Mapping[str, Any], written: Mapping[Any, Any]) -> Iterator[Problem]:
    names = [str(name) for name in _map(raw.get("catalogs"))]
    wanted = written.get("catalog")
    if wanted is None and len(names) > 1:
        choice = " or ".join(f"catalog: {name}" for name in names)
        yield Problem(("sidecar",), f"there are several catalogs; add {choice}", key=True)
    elif isinstance(wanted, str) and not isinstance(wanted, Unsettled) and wanted not in names:
        near = nearest(wanted, names, "add it to catalogs")
        yield Problem(("sidecar", "catalog"), f"unknown catalog {shown(wanted)}; {near}")


def _map(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
