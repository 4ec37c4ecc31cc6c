"""Real-time mode: rows come out while the query's one long batch runs. And what is refused."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.pipeline_process import open_row_reader, produce_values, running_pipeline, write_config


def job(topic: str, sql: str, **to: object) -> dict[str, object]:
    fields = {"fields": {"user": "string", "amount": "double"}}
    return {
        "name": "big",
        "type": "query",
        "tables": {"orders": {"topic": topic, "value": fields}},
        "sql": sql,
        "to": {"topic": f"{topic}-big", "partitions": 2, "key": ["user"], **to},
        "trigger": "realtime",
    }


def orders(first: int) -> list[dict[str, object]]:
    return [{"user": f"u{n % 3}", "amount": float(n)} for n in range(first, first + 20)]


@pytest.mark.needs("java17")
def test_a_query_answers_within_its_run(kafka, tmp_path):
    topic = kafka.create_unique_topic(2)
    kafka.create_topic(f"{topic}-big", 2)
    sql = "SELECT user, amount * 2 AS twice FROM orders WHERE amount >= 10"
    made = job(topic, sql, guarantee="at-least-once")
    where = {"checkpoints": tmp_path / "checkpoints", "master": "local[4]"}
    file = write_config(tmp_path / "gateway.yaml", kafka.bootstrap_servers, made, **where)
    produce_values(kafka.bootstrap_servers, topic, orders(0), "user")
    with (
        running_pipeline("run", "big", "-c", file, log=tmp_path / "log") as run,
        open_row_reader(kafka.bootstrap_servers, f"{topic}-big") as out,
    ):
        out.read_until(10, run)
        produce_values(
            kafka.bootstrap_servers, topic, orders(100), "user"
        )  # while the same batch runs
        found = out.read_until(30, run)
        wanted = [*range(10, 20), *range(100, 120)]
        assert sorted(row["twice"] for row in found) == [2.0 * n for n in wanted]
        assert not list((tmp_path / "checkpoints/big/v1/commits").glob("[0-9]*"))
        assert run.send_signal(signal.SIGTERM) == 0, run.read_log_tail()
    assert "Traceback" not in run.log_path.read_text()


@pytest.mark.parametrize(
    ("sql", "to", "place", "why"),
    [
        (
            "SELECT user, count(*) AS n FROM orders GROUP BY user",
            {"guarantee": "at-least-once"},
            '"trigger"',
            "this job cannot run in real time: count() keeps state; write a trigger such as 0s",
        ),
        ("SELECT user FROM orders", {}, '"trigger"', "at-least-once"),
    ],
)
def test_what_cannot_run_in_real_time_is_refused_with_place_and_reason(
    tmp_path, sql, to, place, why
):
    made = job("orders", sql, **to)
    file = write_config(tmp_path / "gateway.yaml", "localhost:1", made, checkpoints=tmp_path)
    command = [sys.executable, "-m", "gateway", "pipeline", "check", "--offline", "-c", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 78, said
    (line,) = said.stderr.splitlines()
    number = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if place in text)
    assert line.startswith(f"{file}:{number}:")
    assert why in line
