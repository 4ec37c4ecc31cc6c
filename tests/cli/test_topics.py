"""`gateway topics` lists and describes the topics of a Kafka."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.brokers import embedded_kafka
from support.records import RecordToSend, produce_records

from gateway.cli.topics.sample import show_bytes
from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 3, "stock": 1, "__own": 1}, scope="function")


class Done(NamedTuple):
    code: int
    out: str
    err: str


async def topics(folder: Path, *arguments: str) -> Done:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "topics", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def servers(kafka: EmbeddedKafka) -> list[str]:
    """With two orders, the newer of which is in partition 1."""
    records = [
        RecordToSend(b'{"n": 1}', b"a", 0, 1_700_000_000_000),
        RecordToSend(b'{"n": 2}', b"b", 1, 1_700_000_001_000, (("trace", b"\x1b[2J"),)),
    ]
    await produce_records(kafka.bootstrap, "orders", records)
    return ["--servers", ",".join(kafka.bootstrap)]


async def test_topics_are_listed_without_kafkas_own(servers: list[str], tmp_path: Path):
    done = await topics(tmp_path, *servers)
    assert (done.code, done.err) == (0, "")
    assert [line.split() for line in done.out.splitlines()] == [
        ["TOPIC", "PARTITIONS", "REPLICAS", "RECORDS"],
        ["orders", "3", "1", "2"],
        ["stock", "1", "1", "0"],
    ]
    listed = await topics(tmp_path, *servers, "--all", "--json")
    names = [json.loads(line)["name"] for line in listed.out.splitlines()]
    assert names == ["__own", "orders", "stock"]


async def test_a_topic_is_described_with_its_newest_record(servers: list[str], tmp_path: Path):
    done = await topics(tmp_path, "orders", *servers)
    assert (done.code, done.err) == (0, "")
    assert "records  2, 0.0/s" in done.out
    assert "2023-11-14T22:13:21.000Z, partition 1, offset 0" in done.out
    assert 'value  {"n": 2}' in done.out
    assert "\x1b" not in done.out, "a header cannot control the terminal"
    described = json.loads((await topics(tmp_path, "orders", *servers, "--json")).out)
    assert [each["end"] for each in described["partitions"]] == [1, 1, 0]
    assert {"partition", "leader", "replicas", "inSync", "start", "end"} == set(
        described["partitions"][0]
    )
    assert described["newest"]["key"] == "b"


async def test_a_record_without_key_or_value_has_null(
    kafka: EmbeddedKafka, servers: list[str], tmp_path: Path
):
    """JSON had the text "null" for a key or a value that is not there."""

    async def read_newest(record: RecordToSend) -> tuple[object, object]:
        await produce_records(kafka.bootstrap, "stock", [record])
        done = await topics(tmp_path, "stock", *servers, "--json")
        newest = json.loads(done.out)["newest"]
        return newest["key"], newest["value"]

    assert await read_newest(RecordToSend(b"a")) == (None, "a")
    assert await read_newest(RecordToSend(None, b"k")) == ("k", None)
    assert "value  null" in (await topics(tmp_path, "stock", *servers)).out


async def test_the_configuration_gives_servers_and_decodes(servers: list[str], tmp_path: Path):
    text = f"kafka: {{servers: '{servers[1]}', topics: [{{name: orders, value: {{model: int}}}}]}}"
    (tmp_path / "gateway.yaml").write_text(text)
    done = await topics(tmp_path, "orders")
    assert (done.code, done.err) == (0, "")
    assert "(not int: model int has 4 bytes, not 8)" in done.out


async def test_an_unknown_topic_is_reported_with_the_nearest(servers: list[str], tmp_path: Path):
    done = await topics(tmp_path, "order", *servers)
    assert (done.code, done.out) == (1, "")
    assert done.err == "gateway: no broker knows the topic order; did you mean 'orders'?\n"


async def test_a_kafka_that_is_away_is_named(tmp_path: Path):
    done = await topics(tmp_path, "--servers", "127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert "127.0.0.1:1" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", ""),
        ("grün".encode(), "grün"),
        (b"\0\0\0\0\x07abc", "8 bytes, perhaps of schema 7 of a registry; "),
        (b"\xff\xfe", "2 bytes: ff fe"),
        (b"\xff" * 40, "40 bytes: " + "ff " * 32 + "..."),
        (b"x" * 600, "x" * 500 + " ..."),
    ],
)
def test_bytes_without_a_model_are_shown_as_far_as_they_are_text(data: bytes, shown: str):
    assert show_bytes(data).startswith(shown)
