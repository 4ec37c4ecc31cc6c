"""Find out which files of a checkpoint a batch needs, and which of them are damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.errors import PipelineError

from . import integrity, layout
from .files import Files


@dataclass(slots=True)
class Damage:
    """A damaged or missing file of a store; the description follows the file's name."""

    file: str
    description: str
    store_id: layout.StoreId
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
    check_content: integrity.ContentCheck | None = None
    sizes: dict[str, int] = field(init=False)
    _descriptions: dict[str, str | None] = field(default_factory=dict)
    _tables_by_snapshot: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = self.files.list_sizes()

    def read_tables(self, name: str, store: layout.Store) -> Mapping[str, int]:
        """Return the tables of a snapshot with their sizes in bytes.

        A damaged file raises OSError, ValueError or BadZipFile.
        """
        if name not in self._tables_by_snapshot:
            with self.files.fetch(name) as path:
                self._tables_by_snapshot[name] = layout.parse_tables(
                    integrity.read_metadata(path), store.id
                )
        return self._tables_by_snapshot[name]

    def find_damage(self, name: str, store: layout.Store) -> Damage | None:
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

    def find_chain(
        self, store: layout.Store, version: int
    ) -> tuple[list[str] | None, list[Damage]]:
        """Find the shortest chain of undamaged files that leads to a version of a store.

        Returns:
            The names of the chain's files, or None if there is no such chain; and the damage that
            was found in shorter chains.
        """
        damage: list[Damage] = []
        for _, names in store.iter_chains(version):
            chain_damage = [found for name in names if (found := self.find_damage(name, store))]
            damage.extend(chain_damage)
            if not chain_damage:
                return names, damage
        return None, damage

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
            return integrity.describe_damage(path, self.check_content)


def find_newest_batch(sizes: Mapping[str, int], location: str) -> int:
    committed = layout.parse_batches(sizes, "commits")
    if not committed:
        raise PipelineError(f"{location} has no finished batch; run the job first")
    return committed[-1]


def find_stores(
    inspector: CheckpointInspector, batch: int
) -> Mapping[layout.StoreId, layout.Store]:
    name = f"offsets/{batch}"
    if name not in inspector.sizes:
        raise PipelineError(f"{inspector.files.location} has no {name}; restore a backup")
    partitions = layout.parse_partition_count(inspector.files.read(name))
    return layout.select_in_use(layout.parse_stores(inspector.sizes), partitions)


def select_files(inspector: CheckpointInspector, batch: int) -> dict[str, int]:
    """Return the files that a job needs to go on after a batch, with their sizes in bytes.

    If a store has two snapshots, both are returned, so that one may be found damaged later.

    Raises:
        PipelineError: A store has no undamaged files for the batch.
        ValueError: A file cannot be parsed; the running job may have changed it.
        OSError: A file cannot be read; the running job may have removed it.
    """
    sizes = inspector.sizes
    selected = {name for name in sizes if layout.is_always_needed(name)}
    # Spark reads the offsets before the newest ones, too: a batch starts where they end.
    for number in (batch - 1, batch):
        selected |= {f"{log}/{number}" for log in ("offsets", "commits")} & sizes.keys()
    # Late and invalid records of these batches are not written yet.
    if layout.SCANNED_FILE in sizes:
        scanned = int(json.loads(inspector.files.read(layout.SCANNED_FILE))["batch"])
        selected |= {f"offsets/{number}" for number in range(scanned, batch)} & sizes.keys()
    for store in find_stores(inspector, batch).values():
        undamaged_chains = 0
        damage: list[Damage] = []
        for _, names in store.iter_chains(batch + 1):
            chain_damage = [
                found for name in names if (found := inspector.find_damage(name, store))
            ]
            damage.extend(chain_damage)
            if not chain_damage:
                selected |= set(names)
                for name in names:
                    if name.endswith(".zip"):
                        selected |= set(inspector.read_tables(name, store))
                undamaged_chains += 1
            if undamaged_chains == layout.RETAINED_SNAPSHOTS:
                break
        if not undamaged_chains:
            missing = f"{store.id.directory} has no version {batch + 1}"
            problem = "; ".join(map(str, damage)) or missing
            raise PipelineError(
                f"{inspector.files.location}: {problem}; run the job, which mends it, "
                "or restore a backup"
            )
    return {name: sizes[name] for name in sorted(selected)}
