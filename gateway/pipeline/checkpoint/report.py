"""Inspect the checkpoint of a job, while the job may run: its state, its files and their damage.

A `CheckpointInspector` finds out which files a batch needs, and which of them are damaged.
`read_state` reports the sizes of the files. Neither needs Spark. `count_keys` reads keys and values
by Spark's `statestore` source, as of the newest finished batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from gateway.errors import PipelineError
from gateway.pipeline.spark import F

from .checkpoint import (
    RETAINED_SNAPSHOTS,
    SCANNED_FILE,
    Store,
    StoreId,
    is_always_needed,
    parse_batches,
    parse_partition_count,
    parse_stores,
    parse_tables,
)
from .damage import ContentCheck, describe_damage, read_metadata
from .files import Files, refuse_damaged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession


@dataclass(slots=True)
class Damage:
    """A damaged or missing file of a store; the description follows the file's name."""

    file: str
    description: str
    store_id: StoreId
    version: int

    def __str__(self) -> str:
        return f"{self.file} {self.description}"


@dataclass(slots=True)
class CheckpointInspector:
    """An inspection of the files of one checkpoint.

    Each operation creates its own. Every file is checked at most once, and the result is kept,
    because several versions of a store share tables.
    """

    files: Files
    check_content: ContentCheck | None = None
    sizes: dict[str, int] = field(init=False)
    _descriptions: dict[str, str | None] = field(default_factory=dict)
    _tables_by_snapshot: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = self.files.list_sizes()

    def read_tables(self, name: str, store: Store) -> Mapping[str, int]:
        """Return the tables of a snapshot with their sizes in bytes.

        A damaged file raises OSError, ValueError or BadZipFile.
        """
        if name not in self._tables_by_snapshot:
            with self.files.fetch(name) as path:
                self._tables_by_snapshot[name] = parse_tables(read_metadata(path), store.id)
        return self._tables_by_snapshot[name]

    def find_damage(self, name: str, store: Store) -> Damage | None:
        """Return the damage of a snapshot (including its tables) or of a changelog, if any."""
        # A name is V.zip or V.changelog, and V_<uuid> if the format of checkpoints has ids.
        version = int(name.rsplit("/", 1)[-1].split(".")[0].split("_")[0])
        if description := self._check_once(name):
            return Damage(name, description, store.id, version)
        if name.endswith(".zip"):
            for table, size in self.read_tables(name, store).items():
                if description := self._check_once(table, size):
                    return Damage(table, description, store.id, version)
        return None

    def find_chains(
        self, store: Store, version: int, count: int = 1
    ) -> tuple[list[list[str]], list[Damage]]:
        """Find the shortest chains of undamaged files that lead to a version of a store.

        Returns:
            The names of the files of at most `count` chains, and the damage that was found in
            others. There is some if there is no chain.
        """
        chains: list[list[str]] = []
        damage: list[Damage] = []
        for names in store.iter_chains(version):
            chain_damage = [found for name in names if (found := self.find_damage(name, store))]
            damage += chain_damage
            if not chain_damage:
                chains.append(names)
            if len(chains) == count:
                break
        if not (chains or damage):  # files are missing, and none is damaged
            missing = f"has no version {version}"
            damage.append(Damage(store.id.directory, missing, store.id, version))
        return chains, damage

    def _check_once(self, name: str, size: int | None = None) -> str | None:
        if name not in self._descriptions:
            self._descriptions[name] = self._check_file(name, size)
        return self._descriptions[name]

    def _check_file(self, name: str, size: int | None) -> str | None:
        if name not in self.sizes:
            return "is missing"
        if size is not None and size != self.sizes[name]:
            return f"has {self.sizes[name]} bytes, not {size}"
        with self.files.fetch(name) as path:
            return describe_damage(path, self.check_content)


def find_newest_batch(sizes: Mapping[str, int], location: str) -> int:
    committed = parse_batches(sizes, "commits")
    if not committed:
        raise PipelineError(f"{location} has no finished batch; run the job first")
    return committed[-1]


def find_stores(inspector: CheckpointInspector, batch: int) -> Mapping[StoreId, Store]:
    name = f"offsets/{batch}"
    if name not in inspector.sizes:
        raise PipelineError(f"{inspector.files.location} has no {name}; restore a backup")
    partitions = parse_partition_count(inspector.files.read(name))
    stores = parse_stores(inspector.sizes)
    # A rescaling has left behind the others.
    return {each: store for each, store in stores.items() if each.partition < partitions}


def select_files(inspector: CheckpointInspector, batch: int) -> dict[str, int]:
    """Return the files that a job needs to go on after a batch, with their sizes in bytes.

    If a store has two snapshots, both are returned, so that one may be found damaged later.

    Raises:
        PipelineError: A store has no undamaged files for the batch, or a control file is damaged.
        ValueError: A file cannot be parsed; the running job may have changed it.
        OSError: A file cannot be read; the running job may have removed it.
    """
    sizes = inspector.sizes
    selected = {name for name in sizes if is_always_needed(name)}
    # Spark reads the offsets before the newest ones, too: a batch starts where they end.
    for number in (batch - 1, batch):
        selected |= {f"{log}/{number}" for log in ("offsets", "commits")} & sizes.keys()
    # Late and invalid records of these batches are not written yet.
    if SCANNED_FILE in sizes:
        with refuse_damaged(inspector.files.location, SCANNED_FILE):
            scanned = int(json.loads(inspector.files.read(SCANNED_FILE))["batch"])
        selected |= {f"offsets/{number}" for number in range(scanned, batch)} & sizes.keys()
    for store in find_stores(inspector, batch).values():
        chains, damage = inspector.find_chains(store, batch + 1, RETAINED_SNAPSHOTS)
        if not chains:
            raise PipelineError(
                f"{inspector.files.location}: {'; '.join(map(str, damage))}; run the job, which "
                "mends it, or restore a backup"
            )
        for name in chain.from_iterable(chains):
            selected.add(name)
            if name.endswith(".zip"):
                selected |= set(inspector.read_tables(name, store))
    return {name: sizes[name] for name in sorted(selected)}


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


def _inspect_partition(
    inspector: CheckpointInspector, store: Store, version: int, verify: bool
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
        partition.damage = [str(found) for found in inspector.find_chains(store, version)[1]]
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
