"""Records whose timestamps Spark cannot read, from Kafka to Kafka, in each kind of job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.dead_letters import get_header, read_committed
from support.jobs import run_until_ended
from support.pipelines import JobHistory
from support.waiting import block_until

from gateway.pipeline.exactly_once.ledger import ledger_topic
from gateway.pipeline.state.backup import create_backup, restore_backup
from gateway.pipeline.state.files import LocalFiles
from gateway.pipeline.tables.redis import RedisConfig, RedisTable

pytestmark = pytest.mark.night

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
BEYOND = 2**60
AT = 1_700_000_000_000
END = "end"
VALUE = {"fields": {"user": "string", "at": "timestamp_ms"}}
BAD = "bad"


@pytest.fixture
def topics(kafka: KafkaCluster) -> Iterator[tuple[str, str]]:
    """An input of two partitions that takes any timestamp, and an output."""
    topic, to = kafka.create_unique_topic(2, configs=ANY_TIME), kafka.create_unique_topic()
    yield topic, to
    for name in (ledger_topic(to), f"{topic}.dlq"):
        kafka.admin.delete_topic(name)


def settings(kind: str, topic: str, to: str, **changed: Any) -> dict[str, Any]:
    """Return those of a job whose rows have a column `user`. changed: of its input."""
    read = {"topic": topic, "time": "at", "watermark": "1s", "value": VALUE, **changed}
    made = {"name": kind, "type": kind, "trigger": "available-now", "to": {"topic": to}}
    match kind:
        case "query":
            return made | {"tables": {"t": read}, "sql": "SELECT user FROM t"}
        case "sessions":
            return made | {"from": read, "by": ["user"], "gap": "1s"}
        case "aggregate":
            window = {"by": ["user"], "window": {"size": "1m"}}
            return made | {"from": read, **window, "measures": {"n": "count(*)"}}
    made |= {"left": read, "right": read, "on": {"user": "user"}, "before": "0s", "after": "0s"}
    return made | {"select": {"user": "left.user"}}


def produce(kafka: KafkaCluster, topic: str, partition: int, users: Sequence[str]) -> None:
    """Produce records of users; those of `BAD` have timestamps that Spark cannot read."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number, user in enumerate(users):
        timestamp = (-1) ** number * BEYOND if user.startswith(BAD) else 0  # now
        at = AT + 86_400_000 if user == END else AT
        value = json.dumps({"user": user, "at": at})
        producer.produce(topic, value, user, partition, timestamp=timestamp, headers=[("h", b"1")])
    assert producer.flush(60) == 0


def users_of(kafka: KafkaCluster, topic: str) -> Counter[str]:
    found = Counter(json.loads(each.value())["user"] for each in read_committed(kafka, topic))
    found.pop(END, None)
    return found


@pytest.mark.needs("java17")
@pytest.mark.parametrize("kind", ["query", "sessions", "aggregate", "join"])
def test_good_records_around_unreadable_ones_are_rows_once(kafka, spark, tmp_path, topics, kind):
    """One record ended the job, and each of its starts."""
    topic, to = topics
    job = settings(kind, topic, to)
    produce(kafka, topic, 0, ["bad1", "a", "bad2", "bad3", "b", "bad4"])
    produce(kafka, topic, 1, ["c", "bad5"])
    assert run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
    produce(kafka, topic, 0, ["bad6", "d", END])
    produce(kafka, topic, 1, ["e"])
    assert run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
    assert users_of(kafka, to) == Counter("abcde")
    letters = read_committed(kafka, f"{topic}.dlq")
    inputs = {"query": ["t"], "join": ["left", "right"]}.get(kind, ["from"])
    told = Counter((get_header(each, "X-Origin-Input").decode(), each.key()) for each in letters)
    assert told == {(name, b"bad%d" % n): 1 for name in inputs for n in range(1, 7)}


@pytest.mark.needs("java17")
@pytest.mark.parametrize("told", [True, False])
def test_at_least_once_a_letter_is_sent_once_where_that_is_asked_for(
    kafka, spark, tmp_path, topics, told
):
    topic, to = topics
    job = settings("query", topic, to, **({"onInvalid": "dead-letter"} if told else {}))
    job["to"]["guarantee"] = "at-least-once"
    produce(kafka, topic, 0, ["a", "bad1", "b"])
    assert run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
    assert set(users_of(kafka, to)) == {"a", "b"}
    if told:
        assert [each.key() for each in read_committed(kafka, f"{topic}.dlq")] == [b"bad1"]


@pytest.mark.needs("java17")
def test_where_bad_records_end_the_job_this_one_does(kafka, spark, tmp_path, topics):
    topic, to = topics
    produce(kafka, topic, 0, ["a", "bad1", "b"])
    job = settings("query", topic, to, onInvalid="fail")
    reason = run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason
    assert reason is not None
    assert f"topic {topic} partition 0 offset 1" in reason
    assert read_committed(kafka, to) == []


@pytest.mark.needs("java17")
def test_a_table_is_read_around_unreadable_records(kafka, spark, tmp_path, topics):
    topic, to = topics
    table = kafka.create_unique_topic(2, configs=ANY_TIME)
    produce(kafka, table, 0, ["a", "bad1", "bad2", "b", "bad3"])
    produce(kafka, table, 1, ["bad4", "c"])
    produce(kafka, topic, 0, ["bad1", "a", "b", "c"])
    job = {"name": "enriched", "type": "enrich", "trigger": "available-now", "to": {"topic": to}}
    held = {"kind": "broadcast", "topic": table, "fields": {"at": "long"}}
    job |= {"from": {"topic": topic, "time": "at", "value": VALUE}, "on": "user", "table": held}
    job["from"]["value"] = {"fields": {"user": "string"}}
    job["from"]["time"] = "_timestamp"
    assert run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
    rows = [json.loads(each.value()) for each in read_committed(kafka, to)]
    assert sorted((each["user"], each["at"]) for each in rows) == [(each, AT) for each in "abc"]
    assert [each.key() for each in read_committed(kafka, f"{topic}.dlq")] == [b"bad1"]


@pytest.mark.needs("java17")
def test_a_loaded_table_has_the_records_around_unreadable_ones(
    kafka, spark, tmp_path, topics, redis_server
):
    topic, _ = topics
    produce(kafka, topic, 0, ["bad1", "a", "bad2"])
    into = {"kind": "redis", "url": redis_server.url, "prefix": "users:", "fields": {"at": "long"}}
    job = {"name": "load", "type": "load", "trigger": "available-now", "into": into}
    job |= {"from": {"topic": topic}}
    assert run_until_ended(spark, [kafka.bootstrap_servers], tmp_path, job).failure_reason is None
    redis = RedisTable(RedisConfig(redis_server.url, "users:", keys_per_command=10))
    ((_, values, _),) = redis.fetch_values(["a", "bad1", "bad2"])
    assert [value is not None for value in values] == [True, False, False]


@pytest.mark.needs("java17")
def test_a_restored_job_goes_on_behind_what_was_passed_over(kafka, spark, tmp_path, topics):
    """Its identity is another one, so it sends the letters of what it reads, and of no more."""
    topic, to = topics
    job = settings("query", topic, to)
    produce(kafka, topic, 0, ["a", "bad1"])
    assert (
        run_until_ended(spark, [kafka.bootstrap_servers], tmp_path / "one", job).failure_reason
        is None
    )
    produce(kafka, topic, 0, ["bad2", "b"])
    assert (
        run_until_ended(spark, [kafka.bootstrap_servers], tmp_path / "one", job).failure_reason
        is None
    )
    copied = LocalFiles(tmp_path / "copied")
    create_backup(LocalFiles(tmp_path / "one" / "query" / "v1"), copied, "query")
    place = tmp_path / "other" / "query" / "v1"
    restore_backup(copied, LocalFiles(tmp_path / "other" / "query" / "v1.restoring"), str(place))
    produce(kafka, topic, 0, ["bad3", "c"])
    assert (
        run_until_ended(spark, [kafka.bootstrap_servers], tmp_path / "other", job).failure_reason
        is None
    )
    assert users_of(kafka, to) == Counter("abc")
    told = [each.key() for each in read_committed(kafka, f"{topic}.dlq")]
    assert told == [b"bad1", b"bad2", b"bad3"]


@pytest.mark.needs("java17")
def test_a_job_that_is_killed_between_its_letters_and_its_rows_repeats_none(
    kafka, tmp_path, topics
):
    topic, to = topics
    job = settings("query", topic, to)
    del job["trigger"]
    produce(kafka, topic, 0, ["bad1", "a", "bad2", "b"])
    story = JobHistory(job, [kafka.bootstrap_servers], tmp_path)
    with story.running_job() as run:
        block_until(
            lambda: run.is_ended or run.has_logged("passes over"), "a record that is passed over"
        )
        run.kill_tree()
    story.run_to_end()
    assert users_of(kafka, to) == Counter("ab")
    assert [each.key() for each in read_committed(kafka, f"{topic}.dlq")] == [b"bad1", b"bad2"]
