"""A checkpoint that is on no disk of this machine, as far as we know: Hadoop alone reaches it.

viewfs is a file system of Hadoop's like any other, with names of its own; what it mounts here is a
directory of the test, so that the test can look behind it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.pipeline_process import configured, pipeline, produce, rows

pytestmark = [pytest.mark.needs("java17"), pytest.mark.timeout(600)]

ROOT = "viewfs://away/jobs"
LATER = 100_000  # s of event time: what is before has ended


def job(topic: str) -> dict[str, object]:
    return {
        "name": "counts",
        "type": "aggregate",
        "from": {
            "topic": topic,
            "time": "at",
            "watermark": "0s",
            "value": {"fields": {"user": "string", "at": "timestamp"}},
        },
        "by": ["user"],
        "window": {"size": "10s"},
        "measures": {"events": "count(1)"},
        "to": {"topic": f"{topic}-counts", "partitions": 2},
        "trigger": "available-now",
    }


def events(start: int) -> list[dict[str, object]]:
    """Twelve users with five events each in one window, and who ends it."""
    made = [{"user": f"u{n % 12}", "at": start + n % 10} for n in range(60)]
    return [*made, *({"user": f"end{n}", "at": start + LATER} for n in range(8))]


def test_a_job_runs_and_goes_on_with_its_checkpoint_on_another_file_system(kafka, tmp_path):
    topic = kafka.topic(2)
    kafka.create_topic(f"{topic}-counts", 2)
    behind = tmp_path / "behind"
    behind.mkdir()
    conf = {"spark.hadoop.fs.viewfs.mounttable.away.link./jobs": behind.as_uri()}
    file = tmp_path / "gateway.yaml"
    configured(file, kafka.servers, job(topic), checkpoints=ROOT, conf=conf)
    state = {"XDG_STATE_HOME": tmp_path / "state"}  # where progress goes then
    done: list[int] = []
    with rows(kafka.servers, f"{topic}-counts") as out:
        for turn in (1, 2):
            produce(kafka.servers, topic, events((turn - 1) * 2 * LATER), "user")
            with pipeline("run", "all", "-c", file, log=tmp_path / "log", **state) as run:
                assert run.ended() == 0, run.tail()
                # The second turn also ends the eight windows that ended the first one's.
                found = out.until(12 if turn == 1 else 32, run)
            assert batches(behind) == batches(behind, "offsets")
            done.append(len(batches(behind)))
    counts = sorted((row["user"], row["events"]) for row in found)
    users = [(f"u{n}", 5) for n in range(12)] * 2
    assert counts == sorted([*users, *((f"end{n}", 1) for n in range(8))])
    assert 0 < done[0] < done[1]  # of one checkpoint
    assert (behind / "counts/v1/definition.json").exists()
    assert (behind / "counts/v1/state/0").is_dir()
    assert not Path("viewfs:").exists()
    assert json.loads((behind / "counts/v1/metadata").read_text())["id"]


def batches(root: Path, log: str = "commits") -> list[int]:
    names = [each.name for each in (root / "counts/v1" / log).iterdir()]
    return sorted(int(name) for name in names if name.isdigit())
