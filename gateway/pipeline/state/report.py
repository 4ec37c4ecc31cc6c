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

from . import layout
from .files import Files
from .inspector import CheckpointInspector, find_newest_batch, find_stores
from .integrity import ContentCheck

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

# Stores that Spark's source reads by side and not by name (operators of joins).
_JOIN_OPERATOR = "symmetricHashJoin"
_SAMPLE_COLUMNS = (("key", "value"), ("key",))


@dataclass(slots=True)
class StorePartition:
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
class StateReport:
    """Of a job, after a batch."""

    job: str
    batch: int
    partitions: list[StorePartition]
    operators: dict[int, str] = field(default_factory=dict)
    sample: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.partitions)

    @property
    def keys(self) -> int | None:
        counted = [each.keys for each in self.partitions if each.keys is not None]
        return sum(counted) if len(counted) == len(self.partitions) else None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bytes": self.bytes, "keys": self.keys}


def read_state(
    files: Files, job: str, *, verify: bool = False, check_content: ContentCheck | None = None
) -> StateReport:
    """By its files. verify: look at every file that the batch needs. Raises PipelineError: there
    is no finished batch."""
    look = CheckpointInspector(files, check_content)
    batch = find_newest_batch(look.sizes, files.location)
    found = [
        _inspect_partition(look, store, batch + 1, verify)
        for store in find_stores(look, batch).values()
    ]
    return StateReport(job, batch, found)


def count_keys(spark: SparkSession, report: StateReport, location: str, sample_size: int) -> None:
    """Count the keys of each partition, and take a few of each operator."""
    from pyspark.sql import functions as F

    for operator, name, store in _read_operators(spark, location, report):
        report.operators[operator] = name
        mine = [p for p in report.partitions if (p.operator, p.store) == (operator, store)]
        for each in mine:
            each.keys = 0
        for rows in _load_rows(spark, location, report.batch, operator, name, store):
            counted = dict(map(tuple, rows.groupBy("partition_id").count().collect()))
            for each in mine:
                each.keys = (each.keys or 0) + counted.get(each.partition, 0)
            # Values of joins cannot be read: the source's schema has a column more than they have.
            shown = rows.select(
                F.to_json(F.struct(*_SAMPLE_COLUMNS[name == _JOIN_OPERATOR]))
            ).limit(sample_size)
            report.sample += [
                {"operator": operator, "store": store, **json.loads(row[0])}
                for row in (shown.collect() if sample_size else ())
            ]


def format_table(report: StateReport) -> str:
    """For people."""
    heads = ("OPERATOR", "STORE", "PARTITION", "KEYS", "BYTES", "SNAPSHOT", "CHANGELOGS AFTER")
    lines = [heads, *(_format_line(report, each) for each in report.partitions)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    keys = "" if report.keys is None else f", {report.keys} keys"
    shown.insert(0, f"{report.job}: after batch {report.batch}{keys}, {report.bytes} bytes")
    shown += [json.dumps(each) for each in report.sample]
    shown += [f"damaged: {what}" for each in report.partitions for what in each.damage]
    return "\n".join(shown)


def _format_line(report: StateReport, partition: StorePartition) -> tuple[str, ...]:
    name = report.operators.get(partition.operator)
    operator = str(partition.operator) if name is None else f"{partition.operator} {name}"
    keys = "-" if partition.keys is None else str(partition.keys)
    return (
        operator, partition.store, str(partition.partition), keys, str(partition.bytes), str(partition.snapshot),
        str(partition.behind),
    )  # fmt: skip


def _inspect_partition(
    inspector: CheckpointInspector, store: layout.Store, version: int, verify: bool
) -> StorePartition:
    of = store.id
    inside = f"{of.directory}/"
    size = sum(n for name, n in inspector.sizes.items() if _is_in_store(name, inside))
    snapshot = max((v for v in store.snapshots if v <= version), default=0)
    made = StorePartition(of.operator, of.name, of.partition, size, snapshot, version - snapshot)
    if verify:
        chain, met = inspector.find_chain(store, version)
        made.damage = [str(each) for each in met]
        if chain is None and not met:
            made.damage = [f"{of.directory} lacks version {version}"]
    return made


def _is_in_store(name: str, prefix: str) -> bool:
    """Of this store, and not of one within its directory."""
    rest = name.removeprefix(prefix)
    return rest != name and ("/" not in rest or rest.split("/")[0] in ("SSTs", "logs"))


def _read_operators(
    spark: SparkSession, location: str, report: StateReport
) -> Iterable[tuple[int, str, str]]:
    rows = spark.read.format("state-metadata").load(location).collect()
    names = {row["operatorId"]: row["operatorName"] for row in rows}
    if not names:
        raise PipelineError(f"{location} has no state; its job remembers nothing")
    stores = sorted({(each.operator, each.store) for each in report.partitions})
    return [(operator, names.get(operator, "unknown"), store) for operator, store in stores]


def _load_rows(
    spark: SparkSession, location: str, batch: int, operator: int, name: str, store: str
) -> Iterable[DataFrame]:
    def create_reader() -> DataFrameReader:
        made = spark.read.format("statestore").option("operatorId", operator)
        return made.option("batchId", batch)

    if name != _JOIN_OPERATOR:
        return [create_reader().option("storeName", store).load(location)]
    sides = {"left", "right"}
    if store != "default":  # formats before 3 have stores of each side; one stands for its rows
        sides = {side for side in sides if store == f"{side}-keyWithIndexToValue"}
    return [create_reader().option("joinSide", side).load(location) for side in sorted(sides)]
