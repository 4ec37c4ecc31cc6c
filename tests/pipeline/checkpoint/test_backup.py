from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import fake_checkpoint

from gateway.errors import CheckpointRefused, PipelineError
from gateway.pipeline.checkpoint import job_checkpoint, maintenance
from gateway.pipeline.checkpoint.checkpoint import Checkpoint
from gateway.pipeline.checkpoint.files import LocalFiles


@pytest.fixture
def source(tmp_path: Path) -> LocalFiles:
    return LocalFiles(fake_checkpoint.write_checkpoint(tmp_path / "checkpoint"))


@pytest.fixture
def copied(tmp_path: Path, source: LocalFiles) -> LocalFiles:
    target = LocalFiles(tmp_path / "copy")
    maintenance.create_backup(source, target, "sessions")
    return target


def restored(tmp_path: Path, copied: LocalFiles, *, same: bool = False) -> Path:
    to = tmp_path / "v2"
    maintenance.restore_backup(
        copied, LocalFiles(tmp_path / "v2.restoring"), str(to), keep_identity=same
    )
    return to


def test_a_copy_has_what_the_newest_batch_needs_and_no_more(copied: LocalFiles) -> None:
    names = set(copied.list_sizes())
    store = {name.removeprefix("state/0/1/") for name in names if name.startswith("state/0/1/")}
    assert store == {
        "6.zip", "SSTs/000006-own.sst", "SSTs/000001-shared.sst",
        "4.zip", "SSTs/000004-own.sst", "5.changelog", "6.changelog",
    }  # fmt: skip
    assert {name for name in names if name.split("/")[0] in ("offsets", "commits")} == {
        "offsets/4", "offsets/5", "commits/4", "commits/5",
    }  # fmt: skip
    assert {"metadata", "sources/0/0", "state/0/_metadata/metadata", "backup.json"} <= names


def test_a_batch_under_way_is_not_copied(tmp_path: Path, source: LocalFiles) -> None:
    fake_checkpoint.write_offsets(source.path, 6, 2)
    fake_checkpoint.write_file(source.path / "state/0/0/7.changelog", b"half")
    target = LocalFiles(tmp_path / "copy")
    assert maintenance.create_backup(source, target, "sessions").batch == 5
    assert not {"offsets/6", "state/0/0/7.changelog"} & target.list_sizes().keys()


def test_a_damaged_snapshot_is_left_out_where_an_older_one_is_whole(tmp_path, source):
    fake_checkpoint.truncate_file(source.path / "state/0/0/6.zip")
    target = LocalFiles(tmp_path / "copy")
    maintenance.create_backup(source, target, "sessions")
    names = target.list_sizes()
    assert "state/0/0/6.zip" not in names
    assert {"state/0/0/4.zip", "state/0/0/6.changelog"} <= names.keys()


def test_what_has_no_substitute_is_told_and_nothing_is_copied(tmp_path, source):
    fake_checkpoint.truncate_file(source.path / "state/0/0/SSTs/000001-shared.sst")
    fake_checkpoint.truncate_file(source.path / "state/0/0/1.changelog")
    with pytest.raises(PipelineError, match=r"SSTs/000001-shared\.sst has \d+ bytes"):
        maintenance.create_backup(source, LocalFiles(tmp_path / "copy"), "sessions")
    assert not (tmp_path / "copy").exists()


def test_a_directory_in_use_takes_no_copy(source: LocalFiles, copied: LocalFiles) -> None:
    with pytest.raises(PipelineError, match="is not empty"):
        maintenance.create_backup(source, copied, "sessions")


def test_files_that_retention_takes_meanwhile_are_tried_again(tmp_path, source):
    lost: list[str] = []

    class LosingFiles(LocalFiles):
        def put(self, path: Path, name: str) -> None:
            if not lost and name.endswith(".zip"):
                lost.append(name)
                raise FileNotFoundError(name)
            super().put(path, name)

    target = LosingFiles(tmp_path / "copy")
    assert maintenance.create_backup(source, target, "sessions").batch == 5
    assert lost
    maintenance.verify_backup(target)


def test_what_comes_back_is_what_was_copied(tmp_path: Path, copied: LocalFiles) -> None:
    to = restored(tmp_path, copied, same=True)
    back = LocalFiles(to).list_sizes()
    assert back == {
        name: n for name, n in copied.list_sizes().items() if name != maintenance.MANIFEST_FILE
    }
    assert all((to / name).read_bytes() == copied.read(name) for name in back)


def test_a_restored_job_has_a_new_identity_unless_it_is_the_same(tmp_path, copied):
    """The ledger of the old one has batches that are to come under the same numbers."""
    old = json.loads(copied.read("metadata"))["id"]
    new = json.loads((restored(tmp_path, copied) / "metadata").read_bytes())["id"]
    assert old != new
    assert len(new) == len(old)


@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_a_damaged_copy_is_not_restored(tmp_path: Path, copied: LocalFiles, how: str) -> None:
    path = copied.path / "state/0/1/5.changelog"
    path.unlink() if how == "missing" else path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(PipelineError, match=r"5\.changelog is (damaged|missing)"):
        restored(tmp_path, copied)
    assert not (tmp_path / "v2").exists()


def test_an_unfinished_copy_is_told_as_that(tmp_path: Path, copied: LocalFiles) -> None:
    copied.remove(maintenance.MANIFEST_FILE)
    with pytest.raises(PipelineError, match="no finished backup"):
        restored(tmp_path, copied)


def test_a_checkpoint_without_a_batch_cannot_be_copied(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no finished batch"):
        maintenance.create_backup(
            LocalFiles(tmp_path / "none"), LocalFiles(tmp_path / "copy"), "sessions"
        )


@pytest.mark.parametrize("same", [True, False])
def test_a_restored_checkpoint_is_of_one_query(tmp_path, source, same):
    """Its definition names the query, and that of a copy is another one, which is not the first."""
    content = {"format": 2, "job": "sessions", "query": "before", "definition": {}, "hot": []}
    source.write(job_checkpoint.DEFINITION_FILE, json.dumps(content).encode())
    source.write("metadata", b'{"id": "before", "first": true}')
    target = LocalFiles(tmp_path / "copy")
    maintenance.create_backup(source, target, "sessions")
    to = restored(tmp_path, target, same=same)
    query = json.loads((to / "metadata").read_text())["id"]
    assert (query == "before") is Checkpoint(str(to)).is_first() is same
    job_checkpoint.verify_identity(
        (to / job_checkpoint.DEFINITION_FILE).read_bytes(), "sessions", query, str(to)
    )


def test_a_copy_has_the_batches_whose_late_and_invalid_records_are_not_written_yet(
    tmp_path: Path, source: LocalFiles
) -> None:
    """They were left out by the restored job."""
    source.write("scanned.json", b'{"batch": 2}')
    target = LocalFiles(tmp_path / "copy")
    maintenance.create_backup(source, target, "sessions")
    assert {f"offsets/{batch}" for batch in (2, 3, 4, 5)} <= target.list_sizes().keys()


@pytest.mark.parametrize("name", ["metadata", "scanned.json"])
def test_a_control_file_that_is_damaged_is_named(tmp_path, source, name):
    """The command ended with KeyError."""
    source.write(name, b"{}")
    with pytest.raises(CheckpointRefused, match=rf"{name} is damaged"):
        maintenance.create_backup(source, LocalFiles(tmp_path / "copy"), "sessions")
    assert not (tmp_path / "copy").exists()
