"""What a job remembers, read back from its checkpoint: the job may run meanwhile.

Sizes are of files, and need no Spark. Keys and values are read by Spark's `statestore` source,
as of the newest finished batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.errors import PipelineError

from . import chosen, layout
from .files import Files
from .whole import Deep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

# Stores that Spark's source reads by side and not by name (operators of joins).
_JOIN = "symmetricHashJoin"
_SHOWN = (("key", "value"), ("key",))


@dataclass(slots=True)
class Partition:
    """Of one store. bytes: of all files kept, older versions too. snapshot: the newest version
    that is one. behind: changelogs that a restart replays after it. keys: read back, of a join's
    both sides; None: not counted."""

    operator: int
    store: str
    partition: int
    bytes: int
    snapshot: int
    behind: int
    keys: int | None = None
    damage: list[str] = field(default_factory=list)


@dataclass(slots=True)
class State:
    """Of a job, after a batch."""

    job: str
    batch: int
    partitions: list[Partition]
    operators: dict[int, str] = field(default_factory=dict)
    sample: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.partitions)

    @property
    def keys(self) -> int | None:
        counted = [each.keys for each in self.partitions if each.keys is not None]
        return sum(counted) if len(counted) == len(self.partitions) else None

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "bytes": self.bytes, "keys": self.keys}


def state(files: Files, job: str, *, verify: bool = False, deep: Deep | None = None) -> State:
    """By its files. verify: look at every file that the batch needs. Raises PipelineError: there
    is no finished batch."""
    look = chosen.Look(files, deep)
    batch = chosen.batch_of(look.sizes, files.where)
    found = [
        _partition(look, store, batch + 1, verify) for store in chosen.stores(look, batch).values()
    ]
    return State(job, batch, found)


def read(spark: SparkSession, found: State, where: str, sample: int) -> None:
    """Count the keys of each partition, and take a few of each operator."""
    from pyspark.sql import functions as F

    for operator, name, store in _operators(spark, where, found):
        found.operators[operator] = name
        mine = [p for p in found.partitions if (p.operator, p.store) == (operator, store)]
        for each in mine:
            each.keys = 0
        for rows in _rows(spark, where, found.batch, operator, name, store):
            counted = dict(map(tuple, rows.groupBy("partition_id").count().collect()))
            for each in mine:
                each.keys = (each.keys or 0) + counted.get(each.partition, 0)
            # Values of joins cannot be read: the source's schema has a column more than they have.
            shown = rows.select(F.to_json(F.struct(*_SHOWN[name == _JOIN]))).limit(sample)
            found.sample += [
                {"operator": operator, "store": store, **json.loads(row[0])}
                for row in (shown.collect() if sample else ())
            ]


def table(found: State) -> str:
    """For people."""
    heads = ("OPERATOR", "STORE", "PARTITION", "KEYS", "BYTES", "SNAPSHOT", "CHANGELOGS AFTER")
    lines = [heads, *(_line(found, each) for each in found.partitions)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    keys = "" if found.keys is None else f", {found.keys} keys"
    shown.insert(0, f"{found.job}: after batch {found.batch}{keys}, {found.bytes} bytes")
    shown += [json.dumps(each) for each in found.sample]
    shown += [f"damaged: {what}" for each in found.partitions for what in each.damage]
    return "\n".join(shown)


def _line(found: State, each: Partition) -> tuple[str, ...]:
    name = found.operators.get(each.operator)
    operator = str(each.operator) if name is None else f"{each.operator} {name}"
    keys = "-" if each.keys is None else str(each.keys)
    return (
        operator, each.store, str(each.partition), keys, str(each.bytes), str(each.snapshot),
        str(each.behind),
    )  # fmt: skip


def _partition(look: chosen.Look, store: layout.Store, version: int, verify: bool) -> Partition:
    of = store.id
    inside = f"{of.directory}/"
    size = sum(n for name, n in look.sizes.items() if _of(name, inside))
    snapshot = max((v for v in store.snapshots if v <= version), default=0)
    made = Partition(of.operator, of.name, of.partition, size, snapshot, version - snapshot)
    if verify:
        chain, met = look.chain(store, version)
        made.damage = [str(each) for each in met]
        if chain is None and not met:
            made.damage = [f"{of.directory} lacks version {version}"]
    return made


def _of(name: str, inside: str) -> bool:
    """Of this store, and not of one within its directory."""
    rest = name.removeprefix(inside)
    return rest != name and ("/" not in rest or rest.split("/")[0] in ("SSTs", "logs"))


def _operators(spark: SparkSession, where: str, found: State) -> Iterable[tuple[int, str, str]]:
    rows = spark.read.format("state-metadata").load(where).collect()
    names = {row["operatorId"]: row["operatorName"] for row in rows}
    if not names:
        raise PipelineError(f"{where} has no state; its job remembers nothing")
    stores = sorted({(each.operator, each.store) for each in found.partitions})
    return [(operator, names.get(operator, "unknown"), store) for operator, store in stores]


def _rows(
    spark: SparkSession, where: str, batch: int, operator: int, name: str, store: str
) -> Iterable[DataFrame]:
    def reader() -> DataFrameReader:
        made = spark.read.format("statestore").option("operatorId", operator)
        return made.option("batchId", batch)

    if name != _JOIN:
        return [reader().option("storeName", store).load(where)]
    sides = {"left", "right"}
    if store != "default":  # formats before 3 have stores of each side; one stands for its rows
        sides = {side for side in sides if store == f"{side}-keyWithIndexToValue"}
    return [reader().option("joinSide", side).load(where) for side in sorted(sides)]
