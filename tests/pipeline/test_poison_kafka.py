"""Bad records from Kafka to Kafka: no job ends, all good ones are rows, all bad ones are told once.

By night for each kind of job. GATEWAY_POISON=1000 generates so many records for each, with another
seed each time.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from support.brokers import KafkaCluster
from support.dead_letters import get_header, read_committed
from support.jobs import run_until_ended
from support.poison import (
    COLUMN_TYPES,
    TIMESTAMPS,
    PoisonMessage,
    generate_messages,
    parse_expected,
)

from gateway.pipeline.exactly_once.ledger import ledger_topic
from gateway.pipeline.job_settings import get_inputs

MANY = os.environ.get("GATEWAY_POISON")
COUNT, SEED = (int(MANY), random.randrange(2**32)) if MANY else (60, 1)
BATCHES = 4
PLAIN = sorted(set(COLUMN_TYPES) - {"many", "times", "by_name", "inner"})
ALL = sorted(COLUMN_TYPES)
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
BEYOND = 2**60
"""A timestamp in ms that Spark's connector cannot read; nor can it read the negative of it."""
USERS = {f"u{n}": n for n in range(0, 10_000, 3)}
END = "end"  # of the user whose event closes sessions and windows
KEPT = {
    **{"query": ["user", *ALL], "sessions": ["user", *ALL], "aggregate": ["user", *PLAIN]},
    **{"join": ["user", *ALL], "enrich": ["user", "n", *ALL]},
}
"""The columns that are compared, by the kind of job."""


def job(kind: str, read: dict[str, Any], users: str) -> dict[str, Any]:
    """Return the settings of a job beside its name and output. read: its input."""
    by_record_time = {**read, "time": "_timestamp"}
    match kind:
        case "query":
            sql = "SELECT *, CAST(_key AS STRING) AS k FROM t"
            return {"tables": {"t": by_record_time}, "sql": sql}
        case "sessions":
            measures = {name: f"last({name})" for name in ALL}
            return {"from": read, "by": ["user"], "gap": "1s", "measures": measures}
        case "aggregate":
            measures = {name: f"max({name})" for name in PLAIN}
            return {"from": read, "by": ["user"], "window": {"size": "1m"}, "measures": measures}
        case "join":
            select = {name: f"{'right' if n % 2 else 'left'}.{name}" for n, name in enumerate(ALL)}
            made = {"left": read, "right": read, "on": {"user": "user"}, "before": "0s"}
            return {**made, "after": "0s", "select": {"user": "left.user", **select}}
    table = {"kind": "broadcast", "topic": users, "fields": {"n": "int"}}
    return {"from": by_record_time, "on": "user", "table": table}


@pytest.mark.needs("java17")
@pytest.mark.parametrize(
    "kind", ["query", *(pytest.param(kind, marks=pytest.mark.night) for kind in [*KEPT][1:])]
)
def test_good_records_are_rows_bad_ones_dead_letters_and_no_job_ends(kafka, spark, tmp_path, kind):
    """A value out of range, a key of any bytes or half of a surrogate pair ended the job, or
    changed without a word."""
    topic, users, to = (
        kafka.create_unique_topic(configs=ANY_TIME),
        kafka.create_unique_topic(),
        kafka.create_unique_topic(),
    )
    messages = generate_messages(COUNT, SEED)
    _produce(kafka, topic, messages)
    _produce_users(kafka, users)
    read = {"topic": topic, "time": "at", "watermark": "1s", "maxRecords": -(-COUNT // BATCHES)}
    read["value"] = {"fields": {"user": "string", "at": "timestamp_ms", **COLUMN_TYPES}}
    output = {"topic": to, **({"key": ["k"]} if kind == "query" else {})}
    settings = {"name": kind, "type": kind, "trigger": "available-now", "to": output}
    try:
        run = run_until_ended(
            spark, [kafka.bootstrap_servers], tmp_path, {**settings, **job(kind, read, users)}
        )
        assert run.failure_reason is None, f"seed {SEED}"
        rows, letters = read_committed(kafka, to), read_committed(kafka, f"{topic}.dlq")
    finally:
        for name in (ledger_topic(to), f"{topic}.dlq"):
            kafka.admin.delete_topic(name)
    timed = kind in ("query", "enrich")
    good = [
        each
        for each in messages
        if each.json_by_column
        and (TIMESTAMPS[each.timestamp] if timed else each.json_by_column["at"] != "null")
    ]
    found = {json.loads(each.value())["user"]: json.loads(each.value()) for each in rows}
    found.pop(END, None)
    keys = {json.loads(each.value())["user"]: each.key() for each in rows}
    wanted = {json.loads(each.json_by_column["user"]): each for each in good}
    assert sorted(found) == sorted(wanted), f"seed {SEED}"
    assert len(rows) - len(keys) == 0, f"seed {SEED}"
    for user, message in wanted.items():
        row = {name: found[user][name] for name in KEPT[kind]}
        assert row == _row(message, KEPT[kind]), f"seed {SEED}: {message}"
        assert kind != "query" or keys[user] == message.key, f"seed {SEED}: {message}"
    bad = [
        number
        for number, each in enumerate(messages)
        if each.value is not None and each not in good
    ]
    told = Counter(
        (get_header(each, "X-Origin-Input"), int(_last(each, "X-Origin-Offset")))
        for each in letters
    )
    assert told == Counter(
        (name.encode(), number) for name in get_inputs(run.job) for number in bad
    ), f"seed {SEED}"
    for each in letters:
        message = messages[int(_last(each, "X-Origin-Offset"))]
        assert (each.key(), each.value()) == (message.key, message.value), f"seed {SEED}"
        assert each.headers()[: len(message.headers or [])] == (message.headers or [])
        assert _last(each, "X-Reason")
    print(f"{kind}: {len(messages)} records, {len(good)} rows, {len(letters)} dead letters")


@pytest.mark.parametrize(
    ("configs", "timestamp", "refused"),
    [
        ({}, BEYOND, True),
        ({}, -BEYOND, False),
        ({"message.timestamp.before.max.ms": str(9 * 10**15)}, -BEYOND, True),
    ],
)
def test_kafka_refuses_timestamps_that_spark_cannot_read_where_readme_says_so(
    kafka, configs, timestamp, refused
):
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    told: list[Any] = []
    topic = kafka.create_unique_topic(configs=configs)
    producer.produce(topic, b"{}", timestamp=timestamp, on_delivery=lambda *each: told.append(each))
    assert producer.flush(60) == 0
    ((error, _),) = told
    assert (error and error.code()) == (KafkaError.INVALID_TIMESTAMP if refused else None)


def _row(message: PoisonMessage, names: Sequence[str]) -> dict[str, Any]:
    row = {
        name: parse_expected(name, message.json_by_column.get(name, "null"))
        for name in names
        if name != "n"
    }
    if "n" in names:
        row["n"] = USERS.get(row["user"])
    return row


def _produce(kafka: KafkaCluster, topic: str, messages: Sequence[PoisonMessage]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for each in messages:
        _, value, headers, timestamp, _ = each
        producer.produce(topic, value, each.key, headers=headers, timestamp=timestamp)
    closing = {"user": END, "at": 1_700_000_000_000 + 86_400_000}
    producer.produce(topic, json.dumps(closing), timestamp=0)
    assert producer.flush(60) == 0


def _produce_users(kafka: KafkaCluster, topic: str) -> None:
    """Also values that are no rows of the table: their users have none."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for user, n in USERS.items():
        producer.produce(topic, json.dumps({"n": n}), user)
    for number, value in enumerate([b"{", b"\xff", b'{"n": 1e99}', b'{"n": "\\ud800"}']):
        producer.produce(topic, value, f"u{3 * number + 1}")
    assert producer.flush(60) == 0


def _last(letter: Any, name: str) -> bytes:
    """Return the value of the last header of a name: those before are the record's own."""
    value: bytes = [value for each, value in letter.headers() if each == name][-1]
    return value
