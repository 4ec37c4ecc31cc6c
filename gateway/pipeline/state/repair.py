"""Mends a checkpoint whose state is damaged, without anybody.

Spark itself passes over a snapshot whose damage it sees as it loads. It does not see damage of a
table that no `.crc` is beside until it reads the block, and gives up at a damaged changelog.
Here every file is looked at. What is damaged goes to `damaged/`. Where an older snapshot and its
changelogs remain, Spark goes on from those. Otherwise the job goes back to the newest batch whose
state is whole, and the batches since are done again, each with exactly the records it had, which
stand in `offsets`. Their rows were written, as `commits` said, and are not written again.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gateway.errors import PipelineError
from gateway.pipeline.unreadable.offsets import is_rewound, restore_starts, use_real_ends

from . import layout
from .chosen import Damage, Look, batch_of, stores
from .files import Files
from .whole import Deep

# What Spark 4.2, RocksDB and Hadoop say of it; the cause is in the text of the query's end.
_SIGNS = (
    "CANNOT_LOAD_STATE_STORE",
    "block checksum mismatch",
    "Stream is corrupted",
    "ChecksumException",
    "AUTO_SNAPSHOT_REPAIR_FAILED",
    "org.rocksdb.RocksDBException: Corruption",
)

_LATER = f"{layout.DAMAGED}/later"


@dataclass(frozen=True, slots=True)
class Mended:
    """What was found and done. again: batches to be done again, in this order; perhaps none."""

    damage: list[Damage]
    again: list[int]


def damaged_by(error: str) -> bool:
    """Did a query end because its state cannot be read? error: all of what it said."""
    return any(sign in error for sign in _SIGNS)


def repair(files: Files, deep: Deep | None = None) -> Mended:
    """Look at the state of the newest finished batch, and take out what is damaged. The job must
    not run. Raises PipelineError: no batch whose records are still known has whole state."""
    try:
        look = Look(files, deep)
        newest = batch_of(look.sizes, files.where)
        damage, whole = _look(look, newest)
        to = newest if whole else _whole_before(look, newest, damage)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise PipelineError(f"{files.where} cannot be read: {error}") from error
    found = list({(each.file, each.version): each for each in damage}.values())
    for each in found:
        _out(files, look.sizes, each.file)
        if "/SSTs/" in each.file or "/logs/" in each.file:
            for name in layout.stores(look.sizes)[each.store].snapshots.get(each.version, ()):
                _out(files, look.sizes, name)
    if to < newest:
        _back(files, look, to)
    return Mended(found, list(range(to + 1, newest + 1)))


def unfinished(files: Files) -> list[int]:
    """Batches that are still to be done again, as a repair or its process ended before they were;
    for each start of a job. Raises OSError."""
    for name in files.sizes():
        if name.startswith(f"{_LATER}/"):
            files.move(name, f"offsets/{name.rsplit('/', 1)[-1]}")
    restore_starts(files)
    sizes = files.sizes()
    done = set(layout.batches(sizes, "commits"))
    known = [n for n in layout.batches(sizes, "offsets") if n not in done]
    # One that was never done, and so not all written, is Spark's own to do, with its rows.
    return [n for n in known if f"{layout.DAMAGED}/commits/{n}" in sizes]


def replay(files: Files, again: Iterable[int], once: Callable[[], object]) -> None:
    """Do batches again, in order. once: runs the job with `trigger(once=True)` to its end, its
    rows going nowhere."""
    for batch in again:
        with only(files, batch):
            once()
        if (taken := f"{layout.DAMAGED}/commits/{batch}") in files.sizes():
            files.remove(taken)


@contextlib.contextmanager
def only(files: Files, batch: int) -> Iterator[None]:
    """While this lasts a query that is started with `trigger(once=True)` does this batch, and no
    other: what later ones read is aside."""
    later = [n for n in layout.batches(files.sizes(), "offsets") if n > batch]
    for each in later:
        files.move(f"offsets/{each}", f"{_LATER}/{each}")
    use_real_ends(files, batch, real=True)
    try:
        yield
    finally:
        use_real_ends(files, batch, real=False)
        for each in later:
            files.move(f"{_LATER}/{each}", f"offsets/{each}")


def _look(look: Look, batch: int) -> tuple[list[Damage], bool]:
    """What is damaged on the way to a batch, and whether there is another way for all stores."""
    damage: list[Damage] = []
    whole = True
    for store in stores(look, batch).values():
        chain, met = look.chain(store, batch + 1)
        if chain is None and not met:
            met = [Damage(store.id.directory, f"lacks version {batch + 1}", store.id, batch + 1)]
        damage += met
        whole = whole and chain is not None
    return damage, whole


def _whole_before(look: Look, newest: int, damage: list[Damage]) -> int:
    """The newest batch with whole state from which on all that was read is known."""
    known = layout.batches(look.sizes, "offsets")
    done = set(layout.batches(look.sizes, "commits"))
    partitions = layout.partitions_of(look.files.read(f"offsets/{newest}"))
    recreated = ""
    batch = newest - 1
    while batch + 1 in known and batch in known and batch in done:
        if layout.partitions_of(look.files.read(f"offsets/{batch}")) != partitions:
            break  # a rescaling cannot be done again from its offsets
        if is_rewound(look.files, batch + 1):
            recreated = f"batch {batch + 1} read a topic that was recreated since"
            break
        met, whole = _look(look, batch)
        damage += met
        if whole:
            return batch
        batch -= 1
    said = "; ".join({str(found): None for found in damage}) or "versions are missing"
    if recreated:
        said += f"; {recreated}"
    raise PipelineError(
        f"{look.files.where}: {said}; and no older batch is whole: restore a backup, or begin anew "
        "with --fresh"
    )


def _back(files: Files, look: Look, to: int) -> None:
    """Versions after the batch are no longer valid; commits last, they say what is."""
    for store in layout.stores(look.sizes).values():
        for versions in (store.snapshots, store.changelogs):
            for version, names in versions.items():
                for name in names if version > to + 1 else ():
                    _out(files, look.sizes, name)
    for batch in reversed(layout.batches(look.sizes, "commits")):
        if batch > to:
            _out(files, look.sizes, f"commits/{batch}")


def _out(files: Files, sizes: dict[str, int], name: str) -> None:
    if sizes.pop(name, None) is not None:
        files.move(name, f"{layout.DAMAGED}/{name}")
