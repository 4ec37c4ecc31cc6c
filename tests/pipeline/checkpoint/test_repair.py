from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support import fake_checkpoint

from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline.checkpoint import repair
from gateway.pipeline.checkpoint.files import LocalFiles
from gateway.pipeline.checkpoint.report import CheckpointInspector, find_stores
from gateway.pipeline.reports import Reports


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(fake_checkpoint.write_checkpoint(tmp_path / "checkpoint", batch_count=7))


def test_whole_state_is_left_alone(files: LocalFiles) -> None:
    before = files.list_sizes()
    assert repair.repair_state(files) == []
    assert files.list_sizes() == before


def test_a_damaged_snapshot_is_taken_out_where_changelogs_lead_on(files: LocalFiles) -> None:
    fake_checkpoint.truncate_file(files.path / "state/0/1/6.zip")
    assert [each.file for each in repair.repair_state(files)] == ["state/0/1/6.zip"]
    assert not repair.find_batches_to_replay(files)
    assert "damaged/state/0/1/6.zip" in files.list_sizes()


def test_a_damaged_table_takes_out_its_snapshot(files: LocalFiles) -> None:
    (files.path / "state/0/0/SSTs/000006-own.sst").unlink()
    repair.repair_state(files)
    assert not repair.find_batches_to_replay(files)
    assert "damaged/state/0/0/6.zip" in files.list_sizes()


def test_a_file_that_cannot_be_opened_now_is_not_damaged(files: LocalFiles) -> None:
    """Whole files were moved away, and batches replayed, as there were too many open files."""
    before = files.list_sizes()

    def check(path: Path) -> str | None:
        raise OSError(errno.EMFILE, "Too many open files", path)

    with pytest.raises(OSError, match="Too many open files"):
        repair.repair_state(files, check)
    assert files.list_sizes() == before


def test_batches_since_a_damaged_changelog_are_done_again(files: LocalFiles) -> None:
    fake_checkpoint.truncate_file(files.path / "state/0/0/7.changelog")
    repair.repair_state(files)
    assert repair.find_batches_to_replay(files) == [6]
    sizes = files.list_sizes()
    assert {"commits/5", "offsets/6"} <= sizes.keys()
    assert not {"commits/6", "state/0/0/7.changelog", "state/0/1/7.changelog"} & sizes.keys()


def test_a_missing_changelog_counts_as_damage(files: LocalFiles) -> None:
    (files.path / "state/0/1/7.changelog").unlink()
    assert [str(each) for each in repair.repair_state(files)] == ["state/0/1 has no version 7"]
    assert repair.find_batches_to_replay(files) == [6]


def test_stores_go_back_together_to_the_newest_batch_that_all_have(files: LocalFiles) -> None:
    for version in (3, 5, 7):
        fake_checkpoint.truncate_file(files.path / f"state/0/0/{version}.changelog")
    for version in (4, 6):
        fake_checkpoint.truncate_file(files.path / f"state/0/0/{version}.zip")
    repair.repair_state(files)
    assert repair.find_batches_to_replay(files) == [2, 3, 4, 5, 6]
    assert "state/0/1/4.zip" not in files.list_sizes()


def test_nothing_is_touched_where_no_batch_can_be_done_again(files: LocalFiles) -> None:
    fake_checkpoint.truncate_file(files.path / "state/0/0/7.changelog")
    files.remove("offsets/5")
    before = files.list_sizes()
    with pytest.raises(PipelineError, match=r"7\.changelog is cut off.*restore a backup"):
        repair.repair_state(files)
    assert files.list_sizes() == before


def test_no_way_leads_back_over_a_rescaling(files: LocalFiles) -> None:
    fake_checkpoint.write_offsets(files.path, 5, 4)
    fake_checkpoint.truncate_file(files.path / "state/0/0/7.changelog")
    with pytest.raises(PipelineError, match="no older batch is whole"):
        repair.repair_state(files)


def test_stores_beyond_the_partitions_are_left_behind(files: LocalFiles) -> None:
    fake_checkpoint.write_offsets(files.path, 6, 1)
    assert [each.partition for each in find_stores(CheckpointInspector(files), 6)] == [0]


def test_each_batch_is_done_with_no_later_one_in_sight(files: LocalFiles) -> None:
    fake_checkpoint.truncate_file(files.path / "state/0/0/5.changelog")
    fake_checkpoint.truncate_file(files.path / "state/0/0/6.zip")
    repair.repair_state(files)
    again = repair.find_batches_to_replay(files)
    seen: list[int] = []

    def once() -> None:
        batches = [
            int(name.split("/")[1]) for name in files.list_sizes() if name.startswith("offsets")
        ]
        seen.append(max(batches))
        files.write(f"commits/{max(batches)}", b"v1\n{}")

    repair.replay_batches(files, again, once)
    assert seen == again == [4, 5, 6]
    assert not repair.find_batches_to_replay(files)
    assert not [name for name in files.list_sizes() if name.startswith("damaged/commits")]


def test_a_repair_that_was_killed_goes_on(files: LocalFiles) -> None:
    """What had been put aside comes back: else a batch of other records would take its number."""
    fake_checkpoint.truncate_file(files.path / "state/0/0/5.changelog")
    fake_checkpoint.truncate_file(files.path / "state/0/0/6.zip")
    repair.repair_state(files)
    again = repair.find_batches_to_replay(files)
    for later in again[1:]:
        files.move(f"offsets/{later}", f"damaged/later/{later}")
    assert repair.find_batches_to_replay(files) == again
    assert {f"offsets/{batch}" for batch in again} <= files.list_sizes().keys()


def test_one_batch_that_never_ended_is_sparks_own_to_do_again(files: LocalFiles) -> None:
    """Its rows are perhaps not written; those of batches that were done are."""
    fake_checkpoint.write_offsets(files.path, 7, 2)
    assert not repair.find_batches_to_replay(files)
    fake_checkpoint.truncate_file(files.path / "state/0/0/7.changelog")
    repair.repair_state(files)
    assert repair.find_batches_to_replay(files) == [6]


@pytest.mark.parametrize(
    ("said", "damaged"),
    [
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state", True),
        ("org.rocksdb.RocksDBException: block checksum mismatch: stored = 3", True),
        ("[FAILED_READ_FILE.FILE_NOT_EXIST] users.parquet", False),
    ],
)
def test_the_end_of_a_query_tells_whether_its_state_was_damaged(said: str, damaged: bool) -> None:
    assert repair.is_damage_error(said) is damaged


def test_batches_that_could_not_be_done_again_are_done_by_the_next_start(files: LocalFiles) -> None:
    """The next start said that no file looked damaged, and the job failed for good."""
    fake_checkpoint.truncate_file(files.path / "state/0/0/7.changelog")

    def fail() -> None:
        raise PipelineUnavailable("Kafka is away")

    with pytest.raises(PipelineUnavailable):
        repair.recover_state(files, "job", fail, Reports(), state_error="cut off")
    done: list[str] = []
    repair.recover_state(
        files, "job", lambda: done.append("again"), Reports(), state_error="cut off"
    )
    assert done == ["again"]
    assert repair.find_batches_to_replay(files) == []


def test_state_that_cannot_be_read_though_it_looks_whole_is_told(files: LocalFiles) -> None:
    """The message did not have the cause, which was a full disk."""
    cause = "No space left on device"
    with pytest.raises(PipelineError, match=rf"no file of it looks damaged: {cause}; start"):
        repair.recover_state(files, "job", lambda: None, Reports(), state_error=cause)
