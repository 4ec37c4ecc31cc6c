"""A compacted topic into Redis, against a dictionary."""

from __future__ import annotations

import random
from typing import Any
from uuid import uuid4

import pytest
from support.redis import RedisServer

from gateway.config.sections.pipelines import Load
from gateway.errors import CheckpointRefused
from gateway.pipeline.job_settings import resolve_inputs
from gateway.pipeline.jobs import load
from gateway.pipeline.tables import lookup
from gateway.pipeline.tables.redis import RedisConfig, RedisTable

QUERY = str(uuid4())
RECORDS = (
    "value string, _key binary, _topic string, _partition int, _offset bigint, _timestamp timestamp"
)


def settings(url: str = "redis://localhost", **more: Any) -> Load:
    into = {"kind": "redis", "url": url, "prefix": "users:", "fields": {"name": "string"}}
    into |= {"batch": 7}
    source = {"topic": "users", "time": "at", "value": {"fields": {"at": "timestamp"}}, **more}
    return Load.model_validate({"name": "load", "type": "load", "from": source, "into": into})


def records(spark: Any, *rows: tuple[str | None, str | None], first: int = 0) -> Any:
    """Of one partition, in two tasks."""
    made = [
        (value, None if key is None else key.encode(), "users", 3, first + number, None)
        for number, (key, value) in enumerate(rows)
    ]
    return spark.createDataFrame(made, RECORDS).repartition(2)


def stored(server: RedisServer) -> dict[str, str]:
    with server.create_client() as client:
        keys = [key for key in client.keys("users:*") if key != b"users:!loaded"]
        return {key.decode().removeprefix("users:"): client.get(key).decode() for key in keys}


def test_redis_holds_what_the_topic_holds_when_compacted(spark: Any, redis_server: RedisServer):
    chance, table, rows = random.Random(7), dict[str, str](), list[tuple[str, str | None]]()
    for number in range(600):
        key, value = f"u{chance.randrange(80)}", f'{{"name":"n{number}"}}'
        gone = chance.random() < 0.3
        rows.append((key, None if gone else value))
        if gone:
            table.pop(key, None)
        else:
            table[key] = value
    job = load.BatchLoader(settings(redis_server.url), QUERY)
    job(records(spark, *rows[:350]), 0)
    job(records(spark, *rows[350:], first=350), 1)
    assert stored(redis_server) == table
    job(records(spark, *rows[350:], first=350), 1)  # again, after a crash
    assert stored(redis_server) == table
    noted = RedisTable(
        RedisConfig(redis_server.url, "users:", keys_per_command=1)
    ).fetch_positions()
    assert noted["users:3"] == 600
    assert noted["at"] > 1_700_000_000_000


def test_records_without_a_key_are_no_rows_and_a_note_is_not_overwritten(spark, redis_server):
    rows = records(spark, (None, "1"), ("!loaded", "2"), ("a", "3"))
    load.BatchLoader(settings(redis_server.url), QUERY)(rows, 0)
    assert stored(redis_server) == {"a": "3"}
    assert (
        RedisTable(RedisConfig(redis_server.url, "users:", keys_per_command=1)).fetch_positions()[
            "users:3"
        ]
        == 3
    )


def test_a_job_ends_if_redis_has_lost_what_was_loaded(spark: Any, redis_server: RedisServer):
    """After a restart of Redis, further rows were loaded, and nobody missed those before."""
    job = load.BatchLoader(settings(redis_server.url), QUERY)
    job(records(spark, ("a", "1")), 0)
    job(records(spark, (None, "2")), 1)
    with redis_server.create_client() as client:
        before_batch_2 = client.dump("users:!loaded")
        job(records(spark, ("b", "3")), 2)
        client.restore("users:!loaded", 0, before_batch_2, replace=True)  # as a replica has it
        with pytest.raises(CheckpointRefused, match="has 2 of 3 batches"):
            job(records(spark, ("c", "4")), 3)
        client.flushdb()
    for _ in range(2):  # it does not pass once rows were written
        with pytest.raises(CheckpointRefused, match=r"lost rows of users:\*: it has 0 of 3"):
            job(records(spark, ("c", "4")), 3)
    fresh = load.BatchLoader(settings(redis_server.url), str(uuid4()))
    fresh(records(spark, ("a", "1"), ("b", "3"), ("c", "4")), 0)
    assert stored(redis_server) == {"a": "1", "b": "3", "c": "4"}


def test_a_checkpoint_that_was_begun_as_none_was_found_loads_no_table_again(
    spark: Any, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    """With a volume that was not mounted, the table had values of years ago until it was loaded,
    and the process that went on with the old checkpoint asked for --fresh."""
    url, old = redis_server.url, records(spark, ("a", "1"))
    running = load.BatchLoader(settings(url), QUERY, is_first=True)
    running(old, 0)
    running(records(spark, ("a", "2"), first=1), 1)
    restarted = load.BatchLoader(settings(url), QUERY, is_first=True)
    restarted(records(spark, ("a", "3"), first=2), 2)
    with pytest.raises(CheckpointRefused, match=rf"query {QUERY} has loaded users:\* .* --fresh"):
        load.BatchLoader(settings(url), str(uuid4()), is_first=True)(old, 0)
    assert stored(redis_server) == {"a": "3"}
    assert not caplog.messages
    load.BatchLoader(settings(url), other := str(uuid4()))(old, 0)  # --fresh
    assert "rows of earlier loads stay in Redis" in caplog.text
    with pytest.raises(CheckpointRefused, match=f"query {other} has loaded"):
        running(records(spark, ("a", "3"), first=2), 3)
    assert stored(redis_server) == {"a": "1"}


def test_a_process_that_was_held_up_ends_once_a_newer_one_has_loaded(spark, redis_server):
    """It took the newer one's token for lost rows, and wrote older values over the latest ones."""
    older, newer = (load.BatchLoader(settings(redis_server.url), QUERY) for _ in range(2))
    older(records(spark, ("a", "1")), 0)
    newer(records(spark, ("a", "2"), first=1), 1)
    with pytest.raises(CheckpointRefused, match="another process with this checkpoint"):
        older(records(spark, ("a", "1")), 1)
    newer(records(spark, ("b", "3"), first=2), 2)
    assert stored(redis_server) == {"a": "2", "b": "3"}


def test_a_batch_is_written_again_if_redis_is_lost_meanwhile(spark, redis_server, tmp_path):
    """The rows before the loss were missing for ever: nothing was compared within a batch."""
    url, runs = redis_server.url, tmp_path / "runs"

    def lose_rows_once(batches):
        import redis  # the first tier has none

        if not runs.exists():
            with redis.Redis.from_url(url) as client:
                client.flushdb()
        with runs.open("a") as file:
            file.write("run\n")
        yield from batches

    rows = records(spark, ("a", "1"), ("b", "2")).repartition(1)
    load.BatchLoader(settings(url), QUERY)(rows.mapInArrow(lose_rows_once, RECORDS), 0)
    assert runs.read_text() == "run\nrun\n"
    assert stored(redis_server) == {"a": "1", "b": "2"}


def test_values_are_read_as_they_are():
    read = resolve_inputs(settings())["from"]
    assert (read.value.model, read.time, read.topic) == ("string", "_timestamp", "users")


def test_what_lookups_could_not_read_is_told():
    assert list(load.check_job(settings(), {})) == []
    avro = settings(value={"model": "avro", "catalog": "c"})
    assert "lookups cannot read avro" in next(iter(load.check_job(avro, {})))
    for url in ("http://there", "redis://there:99999/0"):
        assert "into.url: is not a URL of Redis" in next(iter(load.check_job(settings(url), {})))


def test_keys_of_any_bytes_are_loaded_and_looked_up(spark: Any, redis_server: RedisServer):
    """A key that is no UTF-8 ended the job."""
    keys = [b"\xff\xfe", b"\x00\x01", "ä".encode()]
    made = [(f'{{"n":{n}}}', key, "users", 0, n, None) for n, key in enumerate(keys)]
    load.BatchLoader(settings(redis_server.url), QUERY)(spark.createDataFrame(made, RECORDS), 0)
    with redis_server.create_client() as client:
        found = [client.get(b"users:" + key) for key in keys]
    assert found == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
    asked = spark.createDataFrame([(key,) for key in keys], "key binary")
    find = lookup.create_lookup_function(
        lookup.LookupConfig(RedisConfig(redis_server.url, "users:", 10), 10, 5.0, 1.0), "j", spark
    )
    rows = asked.select(find(asked["key"].cast("string")).cast("string").alias("json")).collect()
    assert [row.json for row in rows] == ['{"n":0}', '{"n":1}', '{"n":2}']
