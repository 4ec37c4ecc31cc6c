"""The files of a checkpoint, and which of them a batch needs. Pure: names in, names out.

Batch N has `offsets/N` (what it reads), `commits/N` (that it is done), and in every store the
version N+1 (`state/<operator>/<partition>[/<store>]`). A version is a snapshot, `V.zip` and the
tables it names in `SSTs/`, and the changelogs of all versions after it.
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

DAMAGED_DIRECTORY = "damaged"  # where files go that a repair took out
LEASE_FILE = "lease"  # who runs the job

# With a store's newest snapshot an older one is kept, as Spark does without one that is damaged.
RETAINED_SNAPSHOTS = 2


class StoreId(NamedTuple):
    operator: int
    partition: int
    name: str  # `default`, or one of a join's

    @property
    def directory(self) -> str:
        tail = "" if self.name == "default" else f"/{self.name}"
        return f"state/{self.operator}/{self.partition}{tail}"


@dataclass(slots=True)
class Store:
    """Versions and their files, relative to the checkpoint; of one version perhaps several,
    where a task ran twice."""

    id: StoreId
    snapshots: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    changelogs: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    def iter_chains(self, version: int) -> Iterable[tuple[int, list[str]]]:
        """Ways to this version, the shortest first: from which snapshot (0: from nothing), and
        the files beside its tables."""
        logs: list[str] = []
        for at in range(version, -1, -1):
            if at == 0 or at in self.snapshots:
                yield at, [*self.snapshots.get(at, ()), *reversed(logs)]
            if at not in self.changelogs:
                return
            logs.extend(self.changelogs[at])


def parse_stores(names: Iterable[str]) -> Mapping[StoreId, Store]:
    """All stores that the files of a checkpoint show."""
    found: dict[StoreId, Store] = {}
    for name in names:
        if (match := _STATE_PATTERN.fullmatch(name)) is None:
            continue
        operator, partition, store, version, _, kind = match.groups()
        of = StoreId(int(operator), int(partition), store or "default")
        here = found.setdefault(of, Store(of))
        (here.snapshots if kind == "zip" else here.changelogs)[int(version)].append(name)
    return dict(sorted(found.items()))


def parse_batches(names: Iterable[str], log: str) -> list[int]:
    """Those that `offsets` or `commits` has, ascending."""
    found = (match for name in names if (match := _LOG_PATTERN.fullmatch(name)))
    return sorted(int(match[2]) for match in found if match[1] == log)


def select_in_use(stores: Mapping[StoreId, Store], partitions: int) -> Mapping[StoreId, Store]:
    """Without those left behind by a rescaling to fewer."""
    return {of: store for of, store in stores.items() if of.partition < partitions}


def find_newer_files(names: Iterable[str], version: int) -> list[str]:
    """Return the files of state that is newer than a version."""
    return [
        name
        for store in parse_stores(names).values()
        for versions in (store.snapshots, store.changelogs)
        for each, files in versions.items()
        if each > version
        for name in files
    ]


def is_always_needed(name: str) -> bool:
    """Is it needed whichever batch it is? Identity, definition, sources, schemas."""
    top = name.split("/", 1)[0]
    return (
        top not in ("offsets", "commits", "state", DAMAGED_DIRECTORY, LEASE_FILE)
        or "/_metadata/" in name
    )


def parse_partition_count(offsets: bytes) -> int:
    """Those of the state, as a batch's entry of `offsets` has them: its second line is JSON."""
    conf = json.loads(offsets.split(b"\n")[1])["conf"]
    return int(conf["spark.sql.shuffle.partitions"])


def parse_tables(metadata: Mapping[str, object], store_id: StoreId) -> dict[str, int]:
    """The tables and write-ahead logs that a snapshot's `metadata` names, and their bytes."""
    files: dict[str, int] = {}
    for key, directory, name in (
        ("sstFiles", "SSTs", "dfsSstFileName"),
        ("logFiles", "logs", "dfsLogFileName"),
    ):
        for each in metadata.get(key) or ():  # type: ignore[attr-defined]
            files[f"{store_id.directory}/{directory}/{each[name]}"] = int(each["sizeBytes"])
    return files
