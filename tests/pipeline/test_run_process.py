"""`gateway pipeline run` as a process, on a real Kafka: rows out once, ends when told, goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Partition

pytestmark = pytest.mark.needs("java17")
PATIENCE = 120.0  # s
EVENTS = 300
LAST = 10_000_000  # ms of event time: later than all, so that windows end


class Job:
    """The process; `ended` gives its exit code and what it said."""

    def __init__(self, config: Path, *arguments: str) -> None:
        self.said = config.with_suffix(".log")
        self._file = self.said.open("a")
        command = [sys.executable, "-m", "gateway", "pipeline", "run", "all", "-c", str(config)]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=self._file, stderr=self._file, start_new_session=True
        )

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._file.close()


@pytest.fixture
def config(kafka, tmp_path):
    clicks = kafka.topic(2)
    text = f"""
    kafka: {{servers: [{kafka.servers}]}}
    pipelines:
      checkpoints: {tmp_path}/checkpoints
      spark:
        master: local[2]
        conf: {{spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC}}
      jobs:
        - name: visits
          type: aggregate
          from:
            topic: {clicks}
            value: {{fields: {{user: string, at: timestamp_ms}}}}
            time: at
            watermark: 0s
          by: [user]
          window: {{size: 10s}}
          measures: {{clicks: count(1)}}
          to: {{topic: {clicks}-visits, partitions: 2}}
    """
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    yield path, clicks
    kafka.admin.delete_topic(f"{clicks}-visits")


def produce(servers, topic, events):
    producer = Producer({"bootstrap.servers": servers})
    for user, at in events:
        producer.produce(topic, json.dumps({"user": user, "at": at}), user)
    assert producer.flush(30) == 0


def clicks(start, users=5):
    """30 s of event time from `start` on (ms), out of order within 10 s."""
    return [(f"u{n % users}", start + (n * 7919) % 30_000) for n in range(EVENTS)]


def windows(events):
    """The oracle: clicks of each user and window."""
    return Counter((user, at // 10_000 * 10) for user, at in events)


def committed(servers, topic, enough, job):
    """Rows that readers of committed records see, as soon as there are so many."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "t", "enable.auto.commit": False}
    )
    rows: list[dict] = []
    keys: list[str] = []
    consumer.assign([Partition(topic, p, 0) for p in range(2)])
    until = time.monotonic() + PATIENCE
    try:
        while len(rows) < enough:
            assert job.process.poll() is None, job.said.read_text()[-3000:]
            assert time.monotonic() < until, job.said.read_text()[-3000:]
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                rows.append(json.loads(message.value()))
                keys.append(message.key().decode())
    finally:
        consumer.close()
    assert keys == [row["user"] for row in rows]
    return {(row["user"], seconds(row["start"])): row["clicks"] for row in rows}, len(rows)


def seconds(text):
    from datetime import datetime

    return int(datetime.fromisoformat(text).timestamp())


def test_rows_come_out_once_and_a_job_that_was_ended_goes_on_where_it_was(kafka, config):
    path, topic = config
    first, second = clicks(0), clicks(60_000)
    produce(kafka.servers, topic, [*first, *((f"end{n}", 60_000) for n in range(8))])
    job = Job(path)
    try:
        found, _ = committed(kafka.servers, f"{topic}-visits", len(windows(first)), job)
        assert found == windows(first)
        assert job.terminate() == 0
    finally:
        job.close()
    assert "Traceback" not in job.said.read_text()
    produce(kafka.servers, topic, [*second, *((f"end{n}", LAST) for n in range(8))])
    everything = windows([*first, *second, *((f"end{n}", 60_000) for n in range(8))])
    job = Job(path)
    try:
        found, count = committed(kafka.servers, f"{topic}-visits", len(everything), job)
        assert (found, count) == (everything, len(everything))
        assert job.terminate() == 0
    finally:
        job.close()
