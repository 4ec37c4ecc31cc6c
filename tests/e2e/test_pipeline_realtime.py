"""Real-time mode: rows come out while the query's one long batch runs. And what is refused."""

from __future__ import annotations

import json

import pytest
from support.dead_letters import read_committed
from support.jobs import create_job_loop, run_until_ended
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


@pytest.mark.needs("java17")
@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT user, count(*) AS n FROM orders GROUP BY user", "write a trigger such as 0s"),
        ("SELECT 'ann' AS user", "tables.orders: the query does not read it"),
    ],
)
def test_what_only_the_plan_shows_is_refused_as_the_job_starts(kafka, spark, tmp_path, sql, why):
    made = job(kafka.create_unique_topic(), sql, guarantee="at-least-once")
    run = run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, made)
    assert why in (run.failure_reason or "")


def test_exactly_once_is_refused_in_real_time_with_its_place(tmp_path):
    made = job("orders", "SELECT user FROM orders")
    file = tmp_path / "gateway.yaml"
    pipelines = {"checkpoints": str(tmp_path), "jobs": [made]}
    config = {"kafka": {"servers": ["localhost:1"]}, "pipelines": pipelines}
    file.write_text(json.dumps(config, indent=1))  # JSON is YAML
    said = CliRunner().invoke(app, ["pipeline", "check", "--offline", "-c", str(file)])
    assert said.exit_code == 78, said.output
    (line,) = said.stderr.splitlines()
    lines = file.read_text().splitlines()
    number = next(n for n, text in enumerate(lines, 1) if '"trigger"' in text)
    assert line.startswith(f"{file}:{number}:")
    assert "at-least-once" in line
