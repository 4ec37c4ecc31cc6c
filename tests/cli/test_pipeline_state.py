from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import fake_checkpoint
from typer.testing import CliRunner

from gateway.cli import app
from gateway.pipeline.checkpoint import maintenance

CONFIG = """
name: shop
kafka: {servers: ["localhost:9092"]}
pipelines:
  checkpoints: CHECKPOINTS
  jobs:
    - name: visits
      type: sessions
      from: {topic: clicks, value: {fields: {user: string}}}
      by: [user]
      to: {topic: visits}
"""


class Place:
    def __init__(self, directory: Path) -> None:
        self.checkpoints = directory / "checkpoints"
        self.config = directory / "gateway.yaml"
        self.config.write_text(CONFIG.replace("CHECKPOINTS", str(self.checkpoints)))
        self.v1 = fake_checkpoint.write_checkpoint(self.checkpoints / "visits/v1")

    def call(self, command: str, *arguments: str) -> tuple[int, str]:
        words = ["pipeline", command, "visits", "-c", str(self.config), *arguments]
        done = CliRunner().invoke(app, words)
        return done.exit_code, done.output


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_state_tells_bytes_and_snapshots_without_spark(place: Place) -> None:
    code, said = place.call("state")
    assert code == 0
    assert said.startswith("visits: after batch 5, ")
    told = json.loads(place.call("state", "--json")[1])
    assert [(p["partition"], p["snapshot"], p["behind"]) for p in told["partitions"]] == [
        (0, 6, 0),
        (1, 6, 0),
    ]
    assert told["bytes"] == sum(each["bytes"] for each in told["partitions"]) > 0


def test_state_names_damaged_files_and_fails(place: Place) -> None:
    assert place.call("state", "--verify")[0] == 0
    fake_checkpoint.truncate_file(place.v1 / "state/0/1/6.zip")
    code, said = place.call("state", "--verify")
    assert code == 1
    assert "damaged: state/0/1/6.zip" in said


def test_a_backup_becomes_the_next_version(place: Place, tmp_path: Path) -> None:
    code, said = place.call("backup", "--to", str(tmp_path / "copy"))
    assert (code, said.split(",")[0]) == (0, "visits: batch 5")
    code, said = place.call("restore", "--from", str(tmp_path / "copy"))
    assert (code, said) == (
        0,
        f"visits: continues after batch 5, from {place.checkpoints / 'visits/v2'}\n",
    )
    assert place.call("state")[1].startswith("visits: after batch 5")
    assert place.v1.is_dir()


def test_a_running_job_is_not_restored(place: Place, tmp_path: Path) -> None:
    place.call("backup", "--to", str(tmp_path / "copy"))
    with maintenance.hold_lease(str(place.checkpoints / "visits"), "visits"):
        code, said = place.call("restore", "--from", str(tmp_path / "copy"))
    assert code == 1
    assert "visits is run by process" in said
    assert not (place.checkpoints / "visits/v2").exists()


def test_a_copy_of_another_job_is_refused(place: Place, tmp_path: Path) -> None:
    place.call("backup", "--to", str(tmp_path / "copy"))
    manifest = tmp_path / "copy/backup.json"
    manifest.write_text(manifest.read_text().replace('"visits"', '"clicks"'))
    code, said = place.call("restore", "--from", str(tmp_path / "copy"))
    assert code == 1
    assert "is a backup of clicks, not of visits" in said
