"""Real-time mode: rows come out while the query's one long batch runs. And what is refused."""

from __future__ import annotations

import json

import pytest
from support.dead_letters import read_committed
from support.jobs import create_job_loop
from support.pipeline_process import produce_values
from typer.testing import CliRunner

from gateway.cli import app


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
def test_a_query_answers_within_its_run(kafka, spark, tmp_path):
    """One partition: each is a task that runs as long as the query, and the session has two."""
    topic = kafka.create_unique_topic()
    kafka.create_topic(f"{topic}-big", 2)
    sql = "SELECT user, amount * 2 AS twice FROM orders WHERE amount >= 10"
    made = job(topic, sql, guarantee="at-least-once")

    def read_twice() -> list[float]:
        found = read_committed(kafka, f"{topic}-big", 2)
        return sorted(json.loads(each.value())["twice"] for each in found)

    produce_values(kafka.bootstrap_servers, topic, orders(0), "user")
    with create_job_loop(spark, [kafka.bootstrap_servers], tmp_path, made) as loop:
        loop.poll_until(lambda: len(read_twice()) >= 10, "rows")
        produce_values(
            kafka.bootstrap_servers, topic, orders(100), "user"
        )  # while the same batch runs
        loop.poll_until(lambda: len(read_twice()) >= 30, "rows of the same batch")
        wanted = [*range(10, 20), *range(100, 120)]
        assert read_twice() == [2.0 * n for n in wanted]
        assert not list((tmp_path / "big/v1/commits").glob("[0-9]*"))


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
    file = tmp_path / "gateway.yaml"
    pipelines = {"checkpoints": str(tmp_path), "jobs": [made]}
    config = {"kafka": {"servers": ["localhost:1"]}, "pipelines": pipelines}
    file.write_text(json.dumps(config, indent=1))  # JSON is YAML
    said = CliRunner().invoke(app, ["pipeline", "check", "--offline", "-c", str(file)])
    assert said.exit_code == 78, said.output
    (line,) = said.stderr.splitlines()
    number = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if place in text)
    assert line.startswith(f"{file}:{number}:")
    assert why in line
