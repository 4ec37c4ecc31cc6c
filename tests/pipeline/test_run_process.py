"""`gateway pipeline run` as a process, on a real Kafka: rows out once, ends when told, and goes on
with its state divided anew by `rescale`, whose JVM has run no query. It goes on in the session of
the tests, which takes no third JVM.

Its checkpoint is on no disk of this machine, as far as it knows: Hadoop alone reaches it. viewfs is
a file system of Hadoop's like any other, with names of its own; what it mounts here is a directory
of the test, so that the test can look behind it.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.brokers import KafkaCluster
from support.dead_letters import read_committed
from support.jobs import create_job_loop
from support.pipeline_process import (
    open_row_reader,
    produce_values,
    running_pipeline,
    write_config,
)
from support.waiting import block_until

pytestmark = pytest.mark.needs("java17")

ROOT = "viewfs://away/jobs"
EVENTS = 300
LAST = 10_000_000  # ms of event time: later than all, so that windows end

Click = dict[str, Any]


def test_rows_come_out_once_and_a_job_that_was_ended_goes_on_where_it_was(kafka, spark, tmp_path):
    """A SIGTERM to all processes, as systemd and `timeout` send it, ended the JVM before the
    driver, which printed a traceback of py4j."""
    topic, behind = kafka.create_unique_topic(2), tmp_path / "behind"
    kafka.create_topic(f"{topic}-visits", 2)
    behind.mkdir()
    conf = {
        "spark.hadoop.fs.viewfs.mounttable.away.link./jobs": behind.as_uri(),
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    }
    file = tmp_path / "gateway.yaml"
    write_config(file, kafka.bootstrap_servers, job(topic, 2), checkpoints=ROOT, conf=conf)
    state = {"XDG_STATE_HOME": tmp_path / "state"}  # where progress goes then
    first, second = clicks(0), clicks(60_000)
    middle, last = ends(60_000), ends(LAST)
    produce_values(kafka.bootstrap_servers, topic, [*first, *middle], "user")
    with running_pipeline("run", "all", "-c", file, log=tmp_path / "first.log", **state) as run:
        with open_row_reader(kafka.bootstrap_servers, f"{topic}-visits") as out:
            rows = out.read_until(len(windows(first)), run)
        assert visits(rows) == windows(first)
        assert out.keys == [row["user"] for row in rows]
        block_until(lambda: list(behind.glob("visits/v1/state/0/*/*.zip")), "a snapshot")
        os.killpg(run.process.pid, signal.SIGTERM)
        assert run.wait_ended() == 0, run.read_log_tail()
    assert "Traceback" not in run.log_path.read_text()
    done = batches(behind)
    assert done == batches(behind, "offsets")  # the batch was not broken off
    rescale = ("rescale", "visits", "--partitions", 3, "--force", "-c", file)
    with running_pipeline(*rescale, log=tmp_path / "rescale.log", **state) as run:
        assert run.wait_ended() == 0, run.read_log_tail()
    produce_values(kafka.bootstrap_servers, topic, [*second, *last], "user")
    everything = windows([*first, *middle, *second])
    with create_job_loop(spark, [kafka.bootstrap_servers], behind, job(topic, 3)) as loop:
        loop.poll_until(lambda: len(read_rows(kafka, topic)) >= len(everything), "rows")
    assert visits(read_rows(kafka, topic)) == everything
    assert batches(behind) == batches(behind, "offsets")
    assert set(done) < set(batches(behind))  # of one checkpoint
    assert (behind / "visits/v1/definition.json").exists()
    assert (behind / "visits/v1/state/0/2").is_dir()
    assert json.loads((behind / "visits/v1/metadata").read_text())["id"]
    assert not Path("viewfs:").exists()


def job(topic: str, partitions: int) -> dict[str, Any]:
    fields = {"fields": {"user": "string", "at": "timestamp_ms"}}
    return {
        "name": "visits",
        "type": "aggregate",
        "from": {"topic": topic, "time": "at", "watermark": "0s", "value": fields},
        "by": ["user"],
        "window": {"size": "10s"},
        "measures": {"clicks": "count(1)"},
        "to": {"topic": f"{topic}-visits", "partitions": 2},
        "state": {"partitions": partitions, "snapshotAfter": 1},
    }


def clicks(start: int) -> list[Click]:
    """30 s of event time from `start` on (ms), out of order within 10 s."""
    return [{"user": f"u{n % 5}", "at": start + (n * 7919) % 30_000} for n in range(EVENTS)]


def ends(at: int) -> list[Click]:
    """Of so many users that each partition has one: its watermark passes what is before."""
    return [{"user": f"end{n}", "at": at} for n in range(8)]


def windows(events: Iterable[Click]) -> Counter[tuple[str, int]]:
    """The oracle: clicks of each user and window."""
    return Counter((each["user"], each["at"] // 10_000 * 10) for each in events)


def read_rows(kafka: KafkaCluster, topic: str) -> list[dict[str, Any]]:
    return [json.loads(each.value()) for each in read_committed(kafka, f"{topic}-visits", 2)]


def visits(rows: Iterable[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """As `windows` tells it. A row that is there twice counts twice."""
    found: Counter[tuple[str, int]] = Counter()
    for row in rows:
        start = datetime.fromisoformat(row["start"]).timestamp()
        found[row["user"], int(start)] += row["clicks"]
    return found


def batches(root: Path, log: str = "commits") -> list[int]:
    names = [each.name for each in (root / "visits/v1" / log).iterdir()]
    return sorted(int(name) for name in names if name.isdigit())


def test_an_undecodable_record_is_a_dead_letter_while_its_topic_is_idle(kafka, spark, tmp_path):
    """It vanished: there was no dead letter before a next batch."""
    topic = kafka.create_unique_topic(2)
    kafka.create_topic(f"{topic}-visits", 2)
    produce_values(kafka.bootstrap_servers, topic, clicks(0)[:5], "user")
    produce_values(kafka.bootstrap_servers, topic, [{"user": "oops", "at": "x"}], "user")
    letters: list[Any] = []

    def has_letter() -> bool:
        if kafka.admin.topic_exists(f"{topic}.dlq"):
            letters[:] = read_committed(kafka, f"{topic}.dlq")
        return bool(letters)

    with create_job_loop(spark, [kafka.bootstrap_servers], tmp_path, job(topic, 2)) as loop:
        loop.poll_until(has_letter, "a dead letter")
    assert [json.loads(each.value())["user"] for each in letters] == ["oops"]


def test_a_jvm_that_was_killed_ends_the_command_with_one_line(kafka, tmp_path):
    """It ended with four chained tracebacks of ours, and no word of the JVM. What pyspark's own
    threads print of their connections stays."""
    topic = kafka.create_unique_topic(2)
    kafka.create_topic(f"{topic}-visits", 2)
    produce_values(kafka.bootstrap_servers, topic, [*clicks(0), *ends(60_000)], "user")
    file = tmp_path / "gateway.yaml"
    write_config(file, kafka.bootstrap_servers, job(topic, 2), checkpoints=tmp_path / "jobs")
    with running_pipeline("run", "all", "-c", file, log=tmp_path / "log") as run:
        with open_row_reader(kafka.bootstrap_servers, f"{topic}-visits") as out:
            out.read_until(len(windows(clicks(0))), run)
        (jvm,) = (each for each in run.list_descendants() if each.name() == "java")
        jvm.kill()
        assert run.wait_ended() == 1
    log = run.log_path.read_text()
    assert log.splitlines()[-1].startswith("gateway: Spark's JVM has ended with signal 9; ")
    assert "gateway/pipeline/run" not in log


def test_a_jvm_that_does_not_start_is_said_in_one_line(tmp_path):
    """As above."""
    file = tmp_path / "gateway.yaml"
    conf = {"spark.driver.extraJavaOptions": "-agentlib:nosuchagent"}
    write_config(file, "localhost:1", job("clicks", 2), checkpoints=tmp_path / "jobs", conf=conf)
    with running_pipeline("run", "all", "-c", file, log=tmp_path / "log") as run:
        assert run.wait_ended() == 1
    *output, last = run.log_path.read_text().splitlines()
    assert last == "gateway: Spark's JVM ended while it started; see its output above"
    assert "nosuchagent" in "".join(output)
