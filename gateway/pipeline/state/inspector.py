"""What a copy of one batch needs of a checkpoint, every file looked at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.errors import PipelineError

from . import integrity, layout
from .files import Files


@dataclass(slots=True)
class Damage:
    """A file that is not what was written, and the version of a store it belongs to."""

    file: str
    description: str
    store_id: layout.StoreId
    version: int

    def __str__(self) -> str:
        return f"{self.file} {self.description}"


@dataclass(slots=True)
class CheckpointInspector:
    """At the files of a checkpoint; what was looked at is remembered."""

    files: Files
    check_content: integrity.ContentCheck | None = None
    sizes: dict[str, int] = field(init=False)
    _descriptions: dict[str, str | None] = field(default_factory=dict)
    _tables_by_snapshot: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = self.files.list_sizes()

    def read_tables(self, name: str, store: layout.Store) -> Mapping[str, int]:
        """The tables it names, and their bytes. Raises OSError, ValueError, BadZipFile."""
        if name not in self._tables_by_snapshot:
            with self.files.fetch(name) as path:
                self._tables_by_snapshot[name] = layout.parse_tables(
                    integrity.read_metadata(path), store.id
                )
        return self._tables_by_snapshot[name]

    def find_damage(self, name: str, store: layout.Store) -> Damage | None:
        """What is damaged of a snapshot (its tables too) or of a changelog."""
        version = int(name.rsplit("/", 1)[-1].split(".")[0].split("_")[0])
        if said := self._check_once(name):
            return Damage(name, said, store.id, version)
        if name.endswith(".zip"):
            for table, size in self.read_tables(name, store).items():
                if said := self._check_once(table, size):
                    return Damage(table, said, store.id, version)
        return None

    def find_chain(
        self, store: layout.Store, version: int
    ) -> tuple[list[str] | None, list[Damage]]:
        """The files of the shortest whole way to a version (None: there is none), and the damage
        met before it was found."""
        met: list[Damage] = []
        for _, names in store.iter_chains(version):
            bad = [found for name in names if (found := self.find_damage(name, store))]
            met.extend(bad)
            if not bad:
                return names, met
        return None, met

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
    """The newest batch that is done. Raises PipelineError: there is none."""
    done = layout.parse_batches(sizes, "commits")
    if not done:
        raise PipelineError(f"{location} has no finished batch; run the job first")
    return done[-1]


def find_stores(
    inspector: CheckpointInspector, batch: int
) -> Mapping[layout.StoreId, layout.Store]:
    """Those that a batch had. Raises OSError."""
    name = f"offsets/{batch}"
    if name not in inspector.sizes:
        raise PipelineError(f"{inspector.files.location} has no {name}; restore a backup")
    partitions = layout.parse_partition_count(inspector.files.read(name))
    return layout.select_in_use(layout.parse_stores(inspector.sizes), partitions)


def select_files(inspector: CheckpointInspector, batch: int) -> dict[str, int]:
    """The files, with their bytes, from which a job goes on after this batch. Of each store two
    snapshots if it has them, so that one may turn out damaged. Raises PipelineError: something
    is damaged that has no substitute; ValueError, OSError: read again, it changes."""
    sizes = inspector.sizes
    kept = {name for name in sizes if layout.is_always_needed(name)}
    for each in (batch - 1, batch):  # Spark wants the offsets before the newest ones too
        kept |= {f"{log}/{each}" for log in ("offsets", "commits")} & sizes.keys()
    for store in find_stores(inspector, batch).values():
        whole_ones = 0
        met: list[Damage] = []
        for _, names in store.iter_chains(batch + 1):
            bad = [found for name in names if (found := inspector.find_damage(name, store))]
            met.extend(bad)
            if not bad:
                kept |= set(names)
                for name in names:
                    if name.endswith(".zip"):
                        kept |= set(inspector.read_tables(name, store))
                whole_ones += 1
            if whole_ones == layout.RETAINED_SNAPSHOTS:
                break
        if not whole_ones:
            said = "; ".join(map(str, met)) or f"{store.id.directory} lacks version {batch + 1}"
            raise PipelineError(
                f"{inspector.files.location}: {said}; run the job, which mends it, or restore a backup"
            )
    return {name: sizes[name] for name in sorted(kept)}
