"""Enrichment against plain Python: looked up in Redis, and joined with a table that is held."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.redis import RedisServer

from gateway.config.sections.pipelines import Enrich
from gateway.errors import PipelineError
from gateway.pipeline.jobs import enrich
from gateway.pipeline.reports import Reports
from gateway.pipeline.tables import broadcast, lookup

EVENTS = {"user": "string", "page": "string"}
OF_RECORDS = "_key binary, _topic string, _partition int, _offset bigint, _timestamp timestamp"
FIELDS = {"name": "string", "tier": "int", "since": "timestamp_ms"}
SCHEMA = "user string, page string, " + OF_RECORDS


def settings(table: Mapping[str, Any], **more: Any) -> Enrich:
    rest = {"name": "enriched", "type": "enrich", "on": "user", "to": {"topic": "enriched"}}
    source = {"topic": "clicks", "value": {"fields": EVENTS}}
    return Enrich.model_validate({**rest, "from": source, "table": table, **more})


def in_redis(url: str = "redis://localhost", **more: Any) -> dict[str, Any]:
    return {"kind": "redis", "url": url, "prefix": "users:", "fields": FIELDS, **more}


def in_files(path: Path, **more: Any) -> dict[str, Any]:
    return {"kind": "broadcast", "path": str(path), "key": "id", **more}


def events(spark: Any, *users: str | None) -> Any:
    rows = [
        (user, f"p{number}", (user or "").encode(), "clicks", 0, number, None)
        for number, user in enumerate(users)
    ]
    return spark.createDataFrame(rows, SCHEMA).coalesce(1)


def told(rows: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in rows.collect()), key=lambda row: row["page"])


def problems(job: Enrich, columns: Mapping[str, str] = EVENTS) -> list[str]:
    return list(enrich.check_job(job, {"from": columns}))


@pytest.fixture
def until_done() -> Iterator[Callable[[Any], Any]]:
    queries: list[Any] = []

    def until_done(writer: Any) -> Any:
        queries.append(writer.start())
        return queries[-1]

    yield until_done
    for query in queries:
        query.stop()


def test_events_get_the_columns_of_their_row_in_redis(spark: Any, redis_server: RedisServer):
    row = {"name": "Ann", "tier": 2, "since": 1000}
    with redis_server.create_client() as client:
        client.mset({"users:ann": json.dumps(row), "users:bad": "{", "users:none": "null"})
    users = ["ann", "unknown", None, "bad", "none", "ann"]
    found = enrich.build(settings(in_redis(redis_server.url)), {"from": events(spark, *users)})
    assert found.columns == ["user", "page", "name", "tier", "since"]
    rows = told(found)
    assert [row["user"] for row in rows] == users
    assert [row["name"] for row in rows] == ["Ann", None, None, None, None, "Ann"]
    assert [row["tier"] for row in rows] == [2, None, None, None, None, 2]
    assert rows[0]["since"].timestamp() == 1.0
    counted = lookup.stats()["enriched"]
    assert (counted.rows, counted.keys, counted.missing_keys) == (5, 4, 1)


def test_redis_enriches_as_a_dictionary_would(spark: Any, redis_server: RedisServer):
    """More keys than a request, a cache and a batch of Arrow have."""
    table = {f"u{number}": {"name": f"n{number}", "tier": number % 7} for number in range(3000)}
    with redis_server.create_client() as client:
        client.mset({f"users:{user}": json.dumps(row) for user, row in table.items()})
    users = [f"u{number * 7919 % 4000}" for number in range(12_000)]
    job = settings(in_redis(redis_server.url, batch=100, cache=50))
    rows = enrich.build(job, {"from": events(spark, *users)}).collect()
    expected = {user: table.get(user, {"name": None, "tier": None}) for user in users}
    assert len(rows) == len(users)
    assert {row["page"]: (row["user"], row["name"], row["tier"]) for row in rows} == {
        f"p{number}": (user, *expected[user].values()) for number, user in enumerate(users)
    }


def test_keys_that_are_no_text_are_looked_up_by_their_text(spark: Any, redis_server: RedisServer):
    with redis_server.create_client() as client:
        client.set("users:7", '{"name":"seven"}')
        client.set("users:k", '{"name":"key"}')
    rows = spark.createDataFrame([(7, b"k")], "id int, _key binary")
    by_number = settings(in_redis(redis_server.url), on="id")
    assert told_names(enrich.build(by_number, {"from": rows})) == ["seven"]
    by_key = settings(in_redis(redis_server.url), on="_key")
    found = enrich.build(by_key, {"from": rows})
    assert (found.columns[:2], told_names(found)) == (["id", "_key"], ["key"])


def told_names(rows: Any) -> list[str | None]:
    return [row["name"] for row in rows.collect()]


def test_a_table_is_joined_with_one_row_an_event(spark: Any, tmp_path: Path):
    rows = [("ann", "Ann"), ("ann", "Ann"), ("bob", "Bob"), (None, "Nobody")]
    spark.createDataFrame(rows, "id string, name string").write.parquet(str(tmp_path / "users"))
    job = settings(in_files(tmp_path / "users"))
    held = enrich.create_batch_table(job, spark, {}, Reports())
    assert held is not None
    tables = {"from": events(spark, "ann", "cid", None, "bob"), "table": held.get_current()}
    found = enrich.build(job, tables)
    assert found.columns == ["user", "page", "name"]
    assert [row["name"] for row in told(found)] == ["Ann", None, None, "Bob"]


def test_a_column_that_both_have_is_told(spark: Any, tmp_path: Path):
    spark.createDataFrame([("ann", "p")], "id string, page string").write.parquet(
        str(tmp_path / "users")
    )
    job = settings(in_files(tmp_path / "users"))
    held = enrich.create_batch_table(job, spark, {}, Reports())
    assert held is not None
    with pytest.raises(PipelineError, match="both have page"):
        enrich.build(job, {"from": events(spark, "ann"), "table": held.get_current()})


def test_a_topic_is_its_latest_value_of_each_key(spark: Any):
    job = settings({"kind": "broadcast", "topic": "users", "fields": {"name": "string"}})
    rows = [
        ("a", '{"name":"old"}', 0, 0, 9),  # its time is ahead: the offset decides
        ("a", '{"name":"new"}', 0, 1, 2),
        ("b", '{"name":"bob"}', 0, 2, 3),
        ("b", None, 0, 3, 4),
        (None, '{"name":"nobody"}', 0, 4, 5),
        ("c", '{"name":"before"}', 0, 5, 6),  # then the topic got a second partition
        ("c", '{"name":"after"}', 1, 0, 7),
    ]
    raw = spark.createDataFrame(
        rows, "key string, value string, partition int, offset bigint, timestamp bigint"
    )
    assert isinstance(job.table, enrich.Broadcast)
    found = broadcast.select_latest_rows(raw, job.table).collect()
    assert sorted((row[broadcast.KEY_COLUMN], row["name"]) for row in found) == [
        ("a", "new"),
        ("c", "after"),
    ]


def test_a_table_that_is_replaced_does_not_end_a_running_job(spark, tmp_path, until_done):
    """A stream joined with files dies once they are overwritten: FILE_NOT_EXIST."""
    users, clicks = tmp_path / "users", tmp_path / "clicks"

    def write(name: str) -> None:
        rows = spark.createDataFrame([("ann", name)], "id string, name string")
        rows.write.mode("overwrite").parquet(str(users))

    def click(page: str) -> None:
        (clicks / f".{page}").write_text(json.dumps({"user": "ann", "page": page}))
        (clicks / f".{page}").rename(clicks / f"{page}.json")

    write("first")
    clicks.mkdir()
    job = settings(in_files(users, refresh="1ms"))
    held = enrich.create_batch_table(job, spark, {}, Reports())
    assert held is not None
    seen: list[tuple[str, str]] = []

    def batch(rows: Any, epoch: int) -> None:
        found = enrich.build(job, {"from": rows, "table": held.get_current()}).collect()
        seen.extend((row["page"], row["name"]) for row in found)

    stream = spark.readStream.schema("user string, page string").json(str(clicks))
    writer = stream.writeStream.foreachBatch(batch)
    query = until_done(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    click("1")
    query.processAllAvailable()
    write("second")
    click("2")
    query.processAllAvailable()
    for file in users.iterdir():  # as between the two halves of an overwriting
        file.unlink()
    click("3")
    query.processAllAvailable()
    assert query.exception() is None
    assert seen == [("1", "first"), ("2", "second"), ("3", "second")]


def test_a_stream_is_enriched_from_redis(spark, tmp_path, redis_server, until_done):
    with redis_server.create_client() as client:
        client.set("users:ann", '{"name":"Ann"}')
    clicks = tmp_path / "clicks"
    clicks.mkdir()
    (clicks / "1.json").write_text('{"user":"ann","page":"p"}\n{"user":"bob","page":"q"}\n')
    stream = spark.readStream.schema("user string, page string").json(str(clicks))
    rows = enrich.build(settings(in_redis(redis_server.url)), {"from": stream})
    writer = rows.writeStream.format("memory").queryName("enriched_of_test").outputMode("append")
    until_done(writer).processAllAvailable()
    found = spark.table("enriched_of_test").collect()
    assert sorted((row["page"], row["name"]) for row in found) == [("p", "Ann"), ("q", None)]


def test_what_is_wrong_is_told_before_spark_starts():
    assert problems(settings(in_redis())) == []
    assert problems(settings(in_redis(), on="usr"))[0].startswith("on: there is no column 'usr'")
    assert problems(settings(in_redis(), on="_Key", to={"topic": "t", "key": ["User"]})) == []
    wrong = settings(in_redis("http://there", fields={"name": "strng"}, fallback="find"))
    assert [problem.partition(":")[0] for problem in problems(wrong)] == [
        "table.fields.name",
        "table.url",
        "table.fallback",
    ]
    twice = problems(settings(in_redis(fields={"page": "string"})))
    assert twice == ["table.fields.page: from has a column of that name, too; rename one of them"]


def test_a_broadcast_table_has_a_key_and_columns():
    def of_topic(**more: Any) -> list[str]:
        return problems(settings({"kind": "broadcast", "topic": "t", **more}))

    assert "table.fields: is empty" in of_topic()[0]
    assert of_topic(fields={"name": "string"}) == []
    assert "the topic has no column 'nam'" in of_topic(fields={"name": "string"}, key="nam")[0]
    of_files = problems(settings({"kind": "broadcast", "path": "p"}))
    assert "files have no record keys" in of_files[0]


def test_a_key_has_columns_of_the_event_and_the_table():
    assert problems(settings(in_redis(), to={"topic": "t", "key": ["tier"]})) == []
    assert (
        "there is no column 'teir'"
        in problems(settings(in_redis(), to={"topic": "t", "key": ["teir"]}))[0]
    )
