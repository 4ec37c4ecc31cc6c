"""Report the state of a job from its checkpoint, while the job may run.

The sizes are those of the files, and do not need Spark. Keys and values are read by Spark's
`statestore` source, as of the newest finished batch.
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

# Spark's source reads the state of this operator by the side of the join, not by the store's name.
_JOIN_OPERATOR = "symmetricHashJoin"
# The columns of a sample: of other operators, and of joins.
_SAMPLE_COLUMNS = (("key", "value"), ("key",))


@dataclass(slots=True)
class StorePartition:
    """The state of one store in one partition.

    Attributes:
        bytes: The size of all its files, including older versions.
        snapshot: The version of the newest snapshot, 0 for none.
        behind: How many changelogs a restart replays after the snapshot.
        keys: How many keys it has, of both sides for a join; None if they were not counted.
    """

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
    """The state of a job after its newest finished batch.

    Only `count_keys` fills `operators`, their names by number, and `sample`, a few keys and values
    of each store.
    """

    job: str
    batch: int
    partitions: list[StorePartition]
    operators: dict[int, str] = field(default_factory=dict)
    sample: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(partition.bytes for partition in self.partitions)

    @property
    def keys(self) -> int | None:
        """Return how many keys the state has, or None if they were not counted."""
        counts = [partition.keys for partition in self.partitions if partition.keys is not None]
        return sum(counts) if len(counts) == len(self.partitions) else None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bytes": self.bytes, "keys": self.keys}


def read_state(
    files: Files, job: str, *, verify: bool = False, check_content: ContentCheck | None = None
) -> StateReport:
    inspector = CheckpointInspector(files, check_content)
    batch = find_newest_batch(inspector.sizes, files.location)
    partitions = [
        _inspect_partition(inspector, store, batch + 1, verify)
        for store in find_stores(inspector, batch).values()
    ]
    return StateReport(job, batch, partitions)


def count_keys(spark: SparkSession, report: StateReport, location: str, sample_size: int) -> None:
    """Count the keys of each partition, and add a sample of each store to a report."""
    from pyspark.sql import functions as F

    for operator, name, store in _read_operators(spark, location, report):
        report.operators[operator] = name
        partitions = [p for p in report.partitions if (p.operator, p.store) == (operator, store)]
        for partition in partitions:
            partition.keys = 0
        for rows in _load_rows(spark, location, report.batch, operator, name, store):
            counts = dict(map(tuple, rows.groupBy("partition_id").count().collect()))
            for partition in partitions:
                partition.keys = (partition.keys or 0) + counts.get(partition.partition, 0)
            # The values of joins cannot be read: the schema of Spark's source has one column more
            # than they have.
            sample = rows.select(
                F.to_json(F.struct(*_SAMPLE_COLUMNS[name == _JOIN_OPERATOR]))
            ).limit(sample_size)
            report.sample += [
                {"operator": operator, "store": store, **json.loads(row[0])}
                for row in (sample.collect() if sample_size else ())
            ]


def format_table(report: StateReport) -> str:
    heads = ("OPERATOR", "STORE", "PARTITION", "KEYS", "BYTES", "SNAPSHOT", "CHANGELOGS AFTER")
    rows = [heads, *(_format_line(report, partition) for partition in report.partitions)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    keys = "" if report.keys is None else f", {report.keys} keys"
    lines.insert(0, f"{report.job}: after batch {report.batch}{keys}, {report.bytes} bytes")
    lines += [json.dumps(entry) for entry in report.sample]
    lines += [
        f"damaged: {damage}" for partition in report.partitions for damage in partition.damage
    ]
    return "\n".join(lines)


def _format_line(report: StateReport, partition: StorePartition) -> tuple[str, ...]:
    name = report.operators.get(partition.operator)
    operator = str(partition.operator) if name is None else f"{partition.operator} {name}"
    keys = "-" if partition.keys is None else str(partition.keys)
    return (
        operator, partition.store, str(partition.partition), keys,
        str(partition.bytes), str(partition.snapshot), str(partition.behind),
    )  # fmt: skip


def _inspect_partition(
    inspector: CheckpointInspector, store: layout.Store, version: int, verify: bool
) -> StorePartition:
    store_id = store.id
    prefix = f"{store_id.directory}/"
    size = sum(n for name, n in inspector.sizes.items() if _is_in_store(name, prefix))
    snapshot = max((v for v in store.snapshots if v <= version), default=0)
    partition = StorePartition(
        store_id.operator,
        store_id.name,
        store_id.partition,
        bytes=size,
        snapshot=snapshot,
        behind=version - snapshot,
    )
    if verify:
        chain, damage = inspector.find_chain(store, version)
        partition.damage = [str(found) for found in damage]
        if chain is None and not damage:  # files are missing, and none is damaged
            partition.damage = [f"{store_id.directory} has no version {version}"]
    return partition


def _is_in_store(name: str, prefix: str) -> bool:
    """Return whether a file is of the store with a directory, and not of one below it.

    The directories of a join's named stores are below that of the default store.
    """
    rest = name.removeprefix(prefix)
    return rest != name and ("/" not in rest or rest.split("/")[0] in ("SSTs", "logs"))


def _read_operators(
    spark: SparkSession, location: str, report: StateReport
) -> Iterable[tuple[int, str, str]]:
    rows = spark.read.format("state-metadata").load(location).collect()
    names = {row["operatorId"]: row["operatorName"] for row in rows}
    if not names:
        raise PipelineError(f"{location} has no state: its job keeps none")
    stores = sorted({(partition.operator, partition.store) for partition in report.partitions})
    return [(operator, names.get(operator, "unknown"), store) for operator, store in stores]


def _load_rows(
    spark: SparkSession, location: str, batch: int, operator: int, name: str, store: str
) -> Iterable[DataFrame]:
    """Return the rows of a store, by the sides of the join if it is a join's."""

    def create_reader() -> DataFrameReader:
        reader = spark.read.format("statestore").option("operatorId", operator)
        return reader.option("batchId", batch)

    if name != _JOIN_OPERATOR:
        return [create_reader().option("storeName", store).load(location)]
    sides = {"left", "right"}
    # Before format 3 of join state each side has several stores. One of them has all of its rows.
    if store != "default":
        sides = {side for side in sides if store == f"{side}-keyWithIndexToValue"}
    return [create_reader().option("joinSide", side).load(location) for side in sorted(sides)]
