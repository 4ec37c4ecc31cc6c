"""Repair a checkpoint whose state is damaged, without an operator.

Spark itself uses an older snapshot if it notices damage while it loads one. But it only notices
damage of a table without a `.crc` file when it reads the damaged block, and it fails at a damaged
changelog. So every file is inspected here, and damaged files are moved to `damaged/`. If an older
snapshot and its changelogs are undamaged, Spark goes on from these. Otherwise the job goes back to
the newest batch whose state is undamaged, and the batches since are replayed, each with exactly the
records that it had before, as `offsets` has them. Their rows are not written again: `commits`
showed that they had been written. The job must not run meanwhile.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Callable, Iterable

from gateway.errors import PipelineError
from gateway.pipeline.reports import Reports

from .checkpoint import DAMAGED_DIRECTORY, parse_batches, parse_partition_count, parse_stores
from .damage import ContentCheck
from .files import Files
from .report import CheckpointInspector, Damage, find_newest_batch, find_stores

log = logging.getLogger(__name__)

# Texts by which Spark 4.2, RocksDB and Hadoop report damaged state in the error of a query.
_DAMAGE_MESSAGES = (
    "CANNOT_LOAD_STATE_STORE",
    "block checksum mismatch",
    "Stream is corrupted",
    "ChecksumException",
    "AUTO_SNAPSHOT_REPAIR_FAILED",
    "org.rocksdb.RocksDBException: Corruption",
)

_LATER_DIRECTORY = f"{DAMAGED_DIRECTORY}/later"


def is_damage_error(error: str) -> bool:
    return any(message in error for message in _DAMAGE_MESSAGES)


def repair_state(files: Files, check_content: ContentCheck | None = None) -> list[Damage]:
    """Inspect the state of the newest finished batch, and move damaged files to `damaged/`.

    `find_batches_to_replay` returns the batches that this has rolled back.

    Raises:
        PipelineError: A file cannot be interpreted, or no batch is whole.
        OSError: A file cannot be read, which may pass. Nothing was moved.
    """
    try:
        inspector = CheckpointInspector(files, check_content)
        newest = find_newest_batch(inspector.sizes, files.location)
        damage, is_whole = _inspect_batch(inspector, newest)
        last_batch = newest if is_whole else _find_whole_batch(inspector, newest, damage)
    except (ValueError, zipfile.BadZipFile) as error:
        raise PipelineError(f"{files.location} cannot be read: {error}") from error
    # A file that several chains need is found more than once.
    unique_damage = list({(found.file, found.version): found for found in damage}.values())
    for found in unique_damage:
        _move_to_damaged(files, inspector.sizes, found.file)
        # A snapshot without one of its tables is useless. Spark must not try to load it.
        if "/SSTs/" in found.file or "/logs/" in found.file:
            stores = parse_stores(inspector.sizes)
            for name in stores[found.store_id].snapshots.get(found.version, ()):
                _move_to_damaged(files, inspector.sizes, name)
    if last_batch < newest:
        _roll_back(files, inspector, last_batch)
    return unique_damage


def find_batches_to_replay(files: Files) -> list[int]:
    """Undo an interrupted replay, and return the batches that must be replayed.

    Every start of a job calls this.
    """
    for name in files.list_sizes():
        if name.startswith(f"{_LATER_DIRECTORY}/"):
            files.move(name, f"offsets/{name.rsplit('/', 1)[-1]}")
    sizes = files.list_sizes()
    committed = set(parse_batches(sizes, "commits"))
    uncommitted = [n for n in parse_batches(sizes, "offsets") if n not in committed]
    # A batch that was never committed is not replayed: the query itself does it again, and writes
    # its rows.
    return [n for n in uncommitted if f"{DAMAGED_DIRECTORY}/commits/{n}" in sizes]


def replay_batches(files: Files, batches: Iterable[int], run_once: Callable[[], object]) -> None:
    """Replay batches in order; `run_once` runs the query to its end and discards its rows.

    Even with `trigger(once=True)` a query does all batches that have offsets. So those of later
    batches are moved away meanwhile. If the process is killed in between, `find_batches_to_replay`
    moves them back.
    """
    for batch in batches:
        later = [n for n in parse_batches(files.list_sizes(), "offsets") if n > batch]
        for number in later:
            files.move(f"offsets/{number}", f"{_LATER_DIRECTORY}/{number}")
        try:
            run_once()
        finally:
            for number in later:
                files.move(f"{_LATER_DIRECTORY}/{number}", f"offsets/{number}")
        # This file marks a batch that must be replayed, so it is removed last.
        if (marker := f"{DAMAGED_DIRECTORY}/commits/{batch}") in files.list_sizes():
            files.remove(marker)


def _inspect_batch(inspector: CheckpointInspector, batch: int) -> tuple[list[Damage], bool]:
    """Return the damage of a batch's state, and whether all stores have an undamaged chain."""
    damage: list[Damage] = []
    is_whole = True
    for store in find_stores(inspector, batch).values():
        chains, store_damage = inspector.find_chains(store, batch + 1)
        damage += store_damage
        is_whole = is_whole and bool(chains)
    return damage, is_whole


def _find_whole_batch(inspector: CheckpointInspector, newest: int, damage: list[Damage]) -> int:
    """Return the newest batch with undamaged state after which all batches can be replayed."""
    with_offsets = parse_batches(inspector.sizes, "offsets")
    committed = set(parse_batches(inspector.sizes, "commits"))
    partitions = parse_partition_count(inspector.files.read(f"offsets/{newest}"))
    batch = newest - 1
    # The batch after the candidate is the first to be replayed, so its offsets are needed, too.
    while batch + 1 in with_offsets and batch in with_offsets and batch in committed:
        if parse_partition_count(inspector.files.read(f"offsets/{batch}")) != partitions:
            break  # a rescaling cannot be replayed from its offsets
        batch_damage, is_whole = _inspect_batch(inspector, batch)
        damage += batch_damage
        if is_whole:
            return batch
        batch -= 1
    # The keys of the dictionary are the descriptions in their order, without repetitions.
    problem = "; ".join({str(found): None for found in damage})
    raise PipelineError(
        f"{inspector.files.location}: {problem}; and no older batch is whole: restore a backup, "
        "or start again with --fresh"
    )


def _roll_back(files: Files, inspector: CheckpointInspector, last_batch: int) -> None:
    """Move the state and the commits of the batches after a given one to `damaged/`.

    The commits are moved last, the newest one first. So after a crash in between, the newest commit
    is still of a batch whose state has to be repaired, and the repair is repeated.
    """
    for store in parse_stores(inspector.sizes).values():
        for versions in (store.snapshots, store.changelogs):
            for version, names in versions.items():
                for name in names if version > last_batch + 1 else ():
                    _move_to_damaged(files, inspector.sizes, name)
    for batch in reversed(parse_batches(inspector.sizes, "commits")):
        if batch > last_batch:
            _move_to_damaged(files, inspector.sizes, f"commits/{batch}")


def _move_to_damaged(files: Files, sizes: dict[str, int], name: str) -> None:
    """Move a file to `damaged/`, and remove it from `sizes`; do nothing if it is not there."""
    if sizes.pop(name, None) is not None:
        files.move(name, f"{DAMAGED_DIRECTORY}/{name}")


def recover_state(
    files: Files,
    job: str,
    run_once: Callable[[], object],
    reports: Reports,
    *,
    state_error: str | None,
    check_content: ContentCheck | None = None,
) -> None:
    """Repair damaged state, and replay the batches that an earlier or this repair rolled back.

    The query must not run.

    Args:
        state_error: Why the query could not read its state, if it ended by that. The files are
            only inspected in this case.
    """
    batches = find_batches_to_replay(files)
    if state_error:
        damage = repair_state(files, check_content)
        # If batches are left to replay, an earlier start has moved the damaged files already.
        if not (damage or batches):
            raise PipelineError(
                f"{files.location}: the state could not be read, though no file of it looks "
                f"damaged: {state_error}; start the job again once that has passed; if it comes "
                "again, restore a backup, or use --fresh"
            )
        # The repair may have rolled back more batches than an earlier one had left.
        batches = find_batches_to_replay(files)
        outcome = (
            f"batches {batches[0]} to {batches[-1]} are replayed"
            if batches
            else "older files are used"
        )
        for found in damage:
            reports.report_damage(
                job, found.file, f"{found.description}; it is in damaged/ now, and {outcome}"
            )
    if batches:
        log.warning("job %s replays batches %d to %d", job, batches[0], batches[-1])
        replay_batches(files, batches, run_once)
