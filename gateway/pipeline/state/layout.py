"""Interpret the names of a checkpoint's files, and list those that a batch needs.

Batch N has the files `offsets/N` (its input) and `commits/N` (it is finished), and version N + 1 in
every store (`state/<operator>/<partition>[/<store>]`). A version is made of a snapshot, which is
`V.zip` with the tables in `SSTs/` that it names, and of the changelogs of all versions after the
snapshot. These functions do no I/O: they take and return names.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_STATE_PATTERN = re.compile(r"state/(\d+)/(\d+)(?:/([^/]+))?/(\d+)(_[0-9a-f-]+)?\.(zip|changelog)")
_LOG_PATTERN = re.compile(r"(offsets|commits)/(\d+)")

DAMAGED_DIRECTORY = "damaged"  # a repair moves damaged files here
LEASE_FILE = "lease"  # says which process runs the job
SCANNED_FILE = "scanned.json"  # has the last batch whose side outputs are written, as `batch`

# An older snapshot is kept with a store's newest one, because Spark uses the older one if the
# newest one is damaged.
RETAINED_SNAPSHOTS = 2


class StoreId(NamedTuple):
    """A state store; `name` is `default`, or that of one of a join's stores."""

    operator: int
    partition: int
    name: str

    @property
    def directory(self) -> str:
        tail = "" if self.name == "default" else f"/{self.name}"
        return f"state/{self.operator}/{self.partition}{tail}"


@dataclass(slots=True)
class Store:
    """The names of the files of a store, by version.

    A version has several snapshots (`.zip`) or changelogs if its task ran more than once.
    """

    id: StoreId
    snapshots: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    changelogs: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    def iter_chains(self, version: int) -> Iterable[tuple[int, list[str]]]:
        """Yield the chains of files that lead to a version, the shortest first.

        Yields:
            The version of the chain's snapshot (0 for an empty store), and the names of the
            snapshot and of the changelogs after it. The tables of the snapshot are not among them.
        """
        logs: list[str] = []
        for snapshot in range(version, -1, -1):
            if snapshot == 0 or snapshot in self.snapshots:
                yield snapshot, [*self.snapshots.get(snapshot, ()), *reversed(logs)]
            # An older snapshot only leads to the version if all changelogs in between exist.
            if snapshot not in self.changelogs:
                return
            logs.extend(self.changelogs[snapshot])


def parse_stores(names: Iterable[str]) -> Mapping[StoreId, Store]:
    stores: dict[StoreId, Store] = {}
    for name in names:
        if (match := _STATE_PATTERN.fullmatch(name)) is None:
            continue
        operator, partition, store_name, version, _, kind = match.groups()
        store_id = StoreId(int(operator), int(partition), store_name or "default")
        store = stores.setdefault(store_id, Store(store_id))
        (store.snapshots if kind == "zip" else store.changelogs)[int(version)].append(name)
    return dict(sorted(stores.items()))


def parse_batches(names: Iterable[str], log: str) -> list[int]:
    """Return the numbers of the batches that a log (`offsets` or `commits`) has, ascending."""
    matches = (match for name in names if (match := _LOG_PATTERN.fullmatch(name)))
    return sorted(int(match[2]) for match in matches if match[1] == log)


def select_in_use(stores: Mapping[StoreId, Store], partitions: int) -> Mapping[StoreId, Store]:
    """Return the stores in use, without those of partitions that a rescaling has removed."""
    return {
        store_id: store for store_id, store in stores.items() if store_id.partition < partitions
    }


def is_always_needed(name: str) -> bool:
    """Return whether a file is needed for every batch: identity, definition, sources, schemas."""
    top = name.split("/", 1)[0]
    return (
        top not in ("offsets", "commits", "state", DAMAGED_DIRECTORY, LEASE_FILE)
        or "/_metadata/" in name
    )


def parse_partition_count(offsets: bytes) -> int:
    """Return the number of partitions, from Spark's settings in a file of `offsets`."""
    conf = json.loads(offsets.split(b"\n")[1])["conf"]
    return int(conf["spark.sql.shuffle.partitions"])


def parse_tables(metadata: Mapping[str, object], store_id: StoreId) -> dict[str, int]:
    """Return the tables and write-ahead logs of a snapshot, with their sizes in bytes."""
    files: dict[str, int] = {}
    for key, directory, name in (
        ("sstFiles", "SSTs", "dfsSstFileName"),
        ("logFiles", "logs", "dfsLogFileName"),
    ):
        for entry in metadata.get(key) or ():  # type: ignore[attr-defined]
            files[f"{store_id.directory}/{directory}/{entry[name]}"] = int(entry["sizeBytes"])
    return files
