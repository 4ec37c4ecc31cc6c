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
from gateway.pipeline.unreadable.offsets import is_rewound, restore_starts, switch_ends

from . import layout
from .files import Files
from .inspector import CheckpointInspector, Damage, find_newest_batch, find_stores
from .integrity import ContentCheck

# What Spark 4.2, RocksDB and Hadoop say of it; the cause is in the text of the query's end.
_DAMAGE_MESSAGES = (
    "CANNOT_LOAD_STATE_STORE",
    "block checksum mismatch",
    "Stream is corrupted",
    "ChecksumException",
    "AUTO_SNAPSHOT_REPAIR_FAILED",
    "org.rocksdb.RocksDBException: Corruption",
)

_LATER_DIRECTORY = f"{layout.DAMAGED_DIRECTORY}/later"


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What was found and done. again: batches to be done again, in this order; perhaps none."""

    damage: list[Damage]
    batches_to_replay: list[int]


def is_damage_error(error: str) -> bool:
    """Did a query end because its state cannot be read? error: all of what it said."""
    return any(sign in error for sign in _DAMAGE_MESSAGES)


def repair_state(files: Files, check_content: ContentCheck | None = None) -> RepairResult:
    """Look at the state of the newest finished batch, and take out what is damaged. The job must
    not run. Raises PipelineError: no batch whose records are still known has whole state."""
    try:
        look = CheckpointInspector(files, check_content)
        newest = find_newest_batch(look.sizes, files.location)
        damage, whole = _inspect_batch(look, newest)
        to = newest if whole else _find_whole_batch(look, newest, damage)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise PipelineError(f"{files.location} cannot be read: {error}") from error
    found = list({(each.file, each.version): each for each in damage}.values())
    for each in found:
        _move_to_damaged(files, look.sizes, each.file)
        if "/SSTs/" in each.file or "/logs/" in each.file:
            for name in layout.parse_stores(look.sizes)[each.store_id].snapshots.get(
                each.version, ()
            ):
                _move_to_damaged(files, look.sizes, name)
    if to < newest:
        _roll_back(files, look, to)
    return RepairResult(found, list(range(to + 1, newest + 1)))


def find_batches_to_replay(files: Files) -> list[int]:
    """Batches that are still to be done again, as a repair or its process ended before they were;
    for each start of a job. Raises OSError."""
    for name in files.list_sizes():
        if name.startswith(f"{_LATER_DIRECTORY}/"):
            files.move(name, f"offsets/{name.rsplit('/', 1)[-1]}")
    restore_starts(files)
    sizes = files.list_sizes()
    done = set(layout.parse_batches(sizes, "commits"))
    known = [n for n in layout.parse_batches(sizes, "offsets") if n not in done]
    # One that was never done, and so not all written, is Spark's own to do, with its rows.
    return [n for n in known if f"{layout.DAMAGED_DIRECTORY}/commits/{n}" in sizes]


def replay_batches(files: Files, batches: Iterable[int], run_once: Callable[[], object]) -> None:
    """Do batches again, in order. once: runs the job with `trigger(once=True)` to its end, its
    rows going nowhere."""
    for batch in batches:
        with isolate_batch(files, batch):
            run_once()
        if (taken := f"{layout.DAMAGED_DIRECTORY}/commits/{batch}") in files.list_sizes():
            files.remove(taken)


@contextlib.contextmanager
def isolate_batch(files: Files, batch: int) -> Iterator[None]:
    """While this lasts a query that is started with `trigger(once=True)` does this batch, and no
    other: what later ones read is aside."""
    later = [n for n in layout.parse_batches(files.list_sizes(), "offsets") if n > batch]
    for each in later:
        files.move(f"offsets/{each}", f"{_LATER_DIRECTORY}/{each}")
    switch_ends(files, batch, to_real=True)
    try:
        yield
    finally:
        switch_ends(files, batch, to_real=False)
        for each in later:
            files.move(f"{_LATER_DIRECTORY}/{each}", f"offsets/{each}")


def _inspect_batch(inspector: CheckpointInspector, batch: int) -> tuple[list[Damage], bool]:
    """What is damaged on the way to a batch, and whether there is another way for all stores."""
    damage: list[Damage] = []
    whole = True
    for store in find_stores(inspector, batch).values():
        chain, met = inspector.find_chain(store, batch + 1)
        if chain is None and not met:
            met = [Damage(store.id.directory, f"lacks version {batch + 1}", store.id, batch + 1)]
        damage += met
        whole = whole and chain is not None
    return damage, whole


def _find_whole_batch(inspector: CheckpointInspector, newest: int, damage: list[Damage]) -> int:
    """The newest batch with whole state from which on all that was read is known."""
    known = layout.parse_batches(inspector.sizes, "offsets")
    done = set(layout.parse_batches(inspector.sizes, "commits"))
    partitions = layout.parse_partition_count(inspector.files.read(f"offsets/{newest}"))
    recreated = ""
    batch = newest - 1
    while batch + 1 in known and batch in known and batch in done:
        if layout.parse_partition_count(inspector.files.read(f"offsets/{batch}")) != partitions:
            break  # a rescaling cannot be done again from its offsets
        if is_rewound(inspector.files, batch + 1):
            recreated = f"batch {batch + 1} read a topic that was recreated since"
            break
        met, whole = _inspect_batch(inspector, batch)
        damage += met
        if whole:
            return batch
        batch -= 1
    said = "; ".join({str(found): None for found in damage}) or "versions are missing"
    if recreated:
        said += f"; {recreated}"
    raise PipelineError(
        f"{inspector.files.location}: {said}; and no older batch is whole: restore a backup, or begin anew "
        "with --fresh"
    )


def _roll_back(files: Files, inspector: CheckpointInspector, last_batch: int) -> None:
    """Versions after the batch are no longer valid; commits last, they say what is."""
    for store in layout.parse_stores(inspector.sizes).values():
        for versions in (store.snapshots, store.changelogs):
            for version, names in versions.items():
                for name in names if version > last_batch + 1 else ():
                    _move_to_damaged(files, inspector.sizes, name)
    for batch in reversed(layout.parse_batches(inspector.sizes, "commits")):
        if batch > last_batch:
            _move_to_damaged(files, inspector.sizes, f"commits/{batch}")


def _move_to_damaged(files: Files, sizes: dict[str, int], name: str) -> None:
    if sizes.pop(name, None) is not None:
        files.move(name, f"{layout.DAMAGED_DIRECTORY}/{name}")
