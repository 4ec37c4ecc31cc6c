"""What a copy of one batch needs of a checkpoint, every file looked at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.errors import PipelineError

from . import layout, whole
from .files import Files


@dataclass(slots=True)
class Damage:
    """A file that is not what was written, and the version of a store it belongs to."""

    file: str
    what: str
    store: layout.StoreId
    version: int

    def __str__(self) -> str:
        return f"{self.file} {self.what}"


@dataclass(slots=True)
class Look:
    """At the files of a checkpoint; what was looked at is remembered."""

    files: Files
    deep: whole.Deep | None = None
    sizes: dict[str, int] = field(init=False)
    _wrong: dict[str, str | None] = field(default_factory=dict)
    _tables: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = self.files.sizes()

    def snapshot(self, name: str, store: layout.Store) -> Mapping[str, int]:
        """The tables it names, and their bytes. Raises OSError, ValueError, BadZipFile."""
        if name not in self._tables:
            with self.files.fetched(name) as path:
                self._tables[name] = layout.tables_of(whole.contents(path), store.id)
        return self._tables[name]

    def wrong(self, name: str, store: layout.Store) -> Damage | None:
        """What is damaged of a snapshot (its tables too) or of a changelog."""
        version = int(name.rsplit("/", 1)[-1].split(".")[0].split("_")[0])
        if said := self._one(name):
            return Damage(name, said, store.id, version)
        if name.endswith(".zip"):
            for table, size in self.snapshot(name, store).items():
                if said := self._one(table, size):
                    return Damage(table, said, store.id, version)
        return None

    def chain(self, store: layout.Store, version: int) -> tuple[list[str] | None, list[Damage]]:
        """The files of the shortest whole way to a version (None: there is none), and the damage
        met before it was found."""
        met: list[Damage] = []
        for _, names in store.chains(version):
            bad = [found for name in names if (found := self.wrong(name, store))]
            met.extend(bad)
            if not bad:
                return names, met
        return None, met

    def _one(self, name: str, size: int | None = None) -> str | None:
        if name not in self._wrong:
            self._wrong[name] = self._looked(name, size)
        return self._wrong[name]

    def _looked(self, name: str, size: int | None) -> str | None:
        if name not in self.sizes:
            return "is missing"
        if size is not None and size != self.sizes[name]:
            return f"has {self.sizes[name]} bytes, not {size}"
        with self.files.fetched(name) as path:
            return whole.wrong(path, self.deep)


def batch_of(sizes: Mapping[str, int], where: str) -> int:
    """The newest batch that is done. Raises PipelineError: there is none."""
    done = layout.batches(sizes, "commits")
    if not done:
        raise PipelineError(f"{where} has no finished batch; run the job first")
    return done[-1]


def stores(look: Look, batch: int) -> Mapping[layout.StoreId, layout.Store]:
    """Those that a batch had. Raises OSError."""
    name = f"offsets/{batch}"
    if name not in look.sizes:
        raise PipelineError(f"{look.files.where} has no {name}; restore a backup")
    partitions = layout.partitions_of(look.files.read(name))
    return layout.in_use(layout.stores(look.sizes), partitions)


def needed(look: Look, batch: int) -> dict[str, int]:
    """The files, with their bytes, from which a job goes on after this batch. Of each store two
    snapshots if it has them, so that one may turn out damaged. Raises PipelineError: something
    is damaged that has no substitute; ValueError, OSError: read again, it changes."""
    sizes = look.sizes
    kept = {name for name in sizes if layout.always(name)}
    for each in (batch - 1, batch):  # Spark wants the offsets before the newest ones too
        kept |= {f"{log}/{each}" for log in ("offsets", "commits")} & sizes.keys()
    for store in stores(look, batch).values():
        whole_ones = 0
        met: list[Damage] = []
        for _, names in store.chains(batch + 1):
            bad = [found for name in names if (found := look.wrong(name, store))]
            met.extend(bad)
            if not bad:
                kept |= set(names)
                for name in names:
                    if name.endswith(".zip"):
                        kept |= set(look.snapshot(name, store))
                whole_ones += 1
            if whole_ones == layout.SNAPSHOTS:
                break
        if not whole_ones:
            said = "; ".join(map(str, met)) or f"{store.id.directory} lacks version {batch + 1}"
            raise PipelineError(
                f"{look.files.where}: {said}; run the job, which mends it, or restore a backup"
            )
    return {name: sizes[name] for name in sorted(kept)}
