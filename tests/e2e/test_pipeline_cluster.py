"""Jobs on a Spark cluster: by `submit`, and by `run` with its master.

The nodes' Python has no gateway: what runs there is what the job brought.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.dead_letters import read_committed
from support.pipeline_process import (
    is_alive,
    open_row_reader,
    produce_values,
    running_pipeline,
    write_config,
)
from support.spark_cluster import SparkCluster, running_spark_cluster

from gateway.pipeline import jars

ROOT = Path(__file__).parents[2]
EVENTS = 400
GAP = 10  # s
LAST = 1_000_000  # s of event time, later than all: sessions end


def job(topic: str, to: str, trigger: str) -> dict[str, object]:
    return {
        "name": "visits",
        "type": "sessions",
        "from": {
            "topic": topic,
            "time": "at",
            "watermark": "5s",
            "maxRecords": EVENTS // 2 + 8,
            "value": {"fields": {"user": "string", "at": "timestamp", "amount": "int"}},
        },
        "by": ["user"],
        "gap": f"{GAP}s",
        "measures": {"total": "sum(amount)"},
        "to": {"topic": to, "partitions": 2},
        "trigger": trigger,
    }


def events() -> list[dict[str, object]]:
    """Twenty users in each of ten minutes."""
    return [
        {"user": f"u{n % 20}", "at": 60 * (n // 40) + n % 7, "amount": n} for n in range(EVENTS)
    ]


def ends() -> list[dict[str, object]]:
    return [{"user": f"end{n}", "at": LAST, "amount": 0} for n in range(8)]


def sessions(made) -> Counter:
    """The oracle: (user, events, total), as often as each comes."""
    open_, found = {}, []
    for event in sorted(made, key=lambda event: event["at"]):
        user, at = event["user"], event["at"]
        if user in open_ and at - open_[user][0] > GAP:
            found.append((user, *open_.pop(user)[1:]))
        _, count, total = open_.get(user, (at, 0, 0))
        open_[user] = (at, count + 1, total + event["amount"])
    return Counter([*found, *((user, *each[1:]) for user, each in open_.items())])


@pytest.fixture
def topic(kafka):
    name = kafka.create_unique_topic(2)
    kafka.create_topic(f"{name}-visits", 2)
    produce_values(kafka.bootstrap_servers, name, [*events(), *ends()], "user")
    return name


def came_out(kafka, to: str, process) -> Counter:
    """As soon as there are as many rows as there should be."""
    with open_row_reader(kafka.bootstrap_servers, to) as out:
        found = out.read_until(sessions(events()).total(), process)
    return Counter((row["user"], row["events"], row["total"]) for row in found)


def batches(checkpoints: Path) -> tuple[list[str], list[str]]:
    """The numbers of batches that were begun, and of those that are complete."""
    (place,) = checkpoints.glob("visits/v1")
    found = [
        sorted(each.name for each in (place / log).iterdir() if each.name.isdigit())
        for log in ("offsets", "commits")
    ]
    return found[0], found[1]


@pytest.mark.needs("java17")
@pytest.mark.night  # the other way, `submit`, is shown by day
def test_a_job_that_runs_with_the_clusters_master_brings_its_code(kafka, topic, tmp_path):
    to, file = f"{topic}-visits", tmp_path / "gateway.yaml"
    with running_spark_cluster(tmp_path) as cluster:
        made = job(topic, to, "available-now")
        where = {"checkpoints": tmp_path / "checkpoints", "master": cluster.url}
        write_config(file, kafka.bootstrap_servers, made, **where)
        python = {"PYSPARK_PYTHON": cluster.python_path}
        with running_pipeline("run", "all", "-c", file, log=tmp_path / "run.log", **python) as run:
            assert run.wait_ended() == 0, run.read_log_tail()
            assert came_out(kafka, to, run) == sessions(events())
        assert_both_workers_were_sent_the_package(cluster)
    begun, done = batches(tmp_path / "checkpoints")
    assert begun == done


@pytest.mark.needs("java17")
def test_a_job_that_is_submitted_brings_its_code_to_a_cluster_and_its_rows_are_right(
    kafka, topic, tmp_path
):
    to, file = f"{topic}-visits", tmp_path / "gateway.yaml"
    write_config(
        file, kafka.bootstrap_servers, job(topic, to, "1s"), checkpoints=tmp_path / "checkpoints"
    )
    with running_spark_cluster(tmp_path) as cluster:
        python = {"PYSPARK_PYTHON": cluster.python_path}
        words = ("submit", "visits", "-c", file, "--master", cluster.url)
        with running_pipeline(*words, log=tmp_path / "submit.log", **python) as submitted:
            assert came_out(kafka, to, submitted) == sessions(events())
            below = submitted.list_descendants()
            assert submitted.send_signal(signal.SIGTERM) == 0, submitted.read_log_tail()
            assert not [each for each in below if is_alive(each)]
        assert_both_workers_were_sent_the_package(cluster)
    begun, done = batches(tmp_path / "checkpoints")
    assert begun == done


@pytest.mark.needs("java17")
@pytest.mark.night  # the library writes as jobs do
def test_a_program_that_is_submitted_brings_the_package_to_a_cluster(kafka, tmp_path):
    clicks, visits = (kafka.create_unique_topic(2) for _ in range(2))
    produce_values(kafka.bootstrap_servers, clicks, events(), "user")
    example = ROOT / "examples" / "pipeline" / "visits.py"
    submit = Path(str(find_spec("pyspark").origin)).parent / "bin" / "spark-submit"
    with running_spark_cluster(tmp_path) as cluster:
        python = {"PYSPARK_PYTHON": str(cluster.python_path), "SPARK_LOCAL_IP": "127.0.0.1"}
        # For the driver only: the nodes' Python must not find the package.
        python |= {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            [
                *(submit, "--master", cluster.url, "--jars", jars()),
                *(example, kafka.bootstrap_servers, clicks, visits, tmp_path / "checkpoints"),
            ],
            env=os.environ | python,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        assert_both_workers_were_sent_the_package(cluster)
    rows = [json.loads(each.value()) for each in read_committed(kafka, visits, 2)]
    numbers = {user: sorted(r["visit"] for r in rows if r["user"] == user) for user in users()}
    assert numbers == {user: list(range(1, count + 1)) for user, count in users().items()}


def users() -> Counter[str]:
    return Counter(str(event["user"]) for event in events())


def assert_both_workers_were_sent_the_package(cluster: SparkCluster) -> None:
    (name,), same = cluster.list_sent_archives()
    assert same == [name]
