"""SIGTERM while records keep coming, with a real Kafka and a process of its own."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from support.dead_letters import read_committed
from support.pipeline_process import running_pipeline, write_config
from support.waiting import block_until

pytestmark = pytest.mark.night

RATE = 1_000  # records/s
FOLLOWING = 2  # batches that may begin after the signal


@pytest.mark.needs("java17")
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_job_ends_within_two_batches_after_sigterm_while_records_keep_coming(
    kafka, tmp_path, guarantee
):
    """More and more batches began, until it was stopped where Spark was idle, by luck; then the
    next batch was broken off while it was planned, with a thousand lines in the log."""
    topic, to = kafka.create_unique_topic(2), kafka.create_unique_topic()
    job: dict[str, Any] = {
        **{"name": "busy", "type": "query", "trigger": "0s", "sql": "SELECT n FROM t"},
        "tables": {"t": {"topic": topic, "value": {"fields": {"n": "bigint"}}}},
        "to": {"topic": to, "guarantee": guarantee},
    }
    file = write_config(
        tmp_path / "gateway.yaml", kafka.bootstrap_servers, job, checkpoints=tmp_path / "held"
    )
    held = tmp_path / "held" / "busy" / "v1"
    with records_coming(kafka.bootstrap_servers, topic):
        with running_pipeline("run", "all", "-c", file, log=tmp_path / "log") as run:
            block_until(
                lambda: max(batches(held, "commits"), default=-1) >= 2 or run.process.poll(), ""
            )
            assert run.process.poll() is None, run.read_log_tail()
            before, told = max(batches(held, "offsets")), time.monotonic()
            assert run.send_signal(signal.SIGTERM) == 0, run.read_log_tail()
            took = time.monotonic() - told
        after = max(batches(held, "offsets")) - before
    print(f"{guarantee}: {after} batches began after the signal, the end took {took:.1f} s")
    assert after <= FOLLOWING
    if guarantee == "exactly-once":
        assert batches(held, "offsets") == batches(held, "commits")
    assert "InterruptedException" not in (tmp_path / "log").read_text()
    found = [each.value() for each in read_committed(kafka, to)]
    assert len(found) == len(set(found))


def batches(held: Path, log: str) -> list[int]:
    directory = held / log
    names = [each.name for each in directory.iterdir()] if directory.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


@contextmanager
def records_coming(servers: str, topic: str) -> Iterator[None]:
    """Produce `RATE` records a second while this lasts."""
    ended = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
        count, began = 0, time.monotonic()
        while not ended.wait(0.01):
            while count < (time.monotonic() - began) * RATE:
                producer.produce(topic, b'{"n": %d}' % count, partition=count % 2)
                count += 1
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
