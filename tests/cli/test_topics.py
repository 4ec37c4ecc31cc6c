"""`gateway topics` lists and describes the topics of a Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.brokers import embedded_kafka
from support.commands import run_command
from support.records import RecordToSend, produce_records

from gateway.cli.topics.topic_report import show_bytes
from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 3, "stock": 1, "__own": 1}, scope="function")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def servers(kafka: EmbeddedKafka) -> list[str]:
    """With two orders, the newer of which is in partition 1."""
    records = [
        RecordToSend(b'{"n": 1}', b"a", 0, 1_700_000_000_000),
        RecordToSend(b'{"n": 2}', b"b", 1, 1_700_000_001_000, (("trace", b"\x1b[2J"),)),
    ]
    await produce_records(kafka.bootstrap, "orders", records)
    return ["--servers", ",".join(kafka.bootstrap)]


async def test_topics_are_listed_without_kafkas_own(servers: list[str]):
    done = await run_command("topics", *servers)
    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["TOPIC", "PARTITIONS", "REPLICAS", "RECORDS"],
        ["orders", "3", "1", "2"],
        ["stock", "1", "1", "0"],
    ]
    listed = await run_command("topics", *servers, "--all", "--json")
    names = [json.loads(line)["name"] for line in listed.stdout.splitlines()]
    assert names == ["__own", "orders", "stock"]


async def test_a_topic_is_described_with_its_newest_record(servers: list[str]):
    done = await run_command("topics", "orders", *servers)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "records  2, 0.0/s" in done.stdout
    assert "2023-11-14T22:13:21.000Z, partition 1, offset 0" in done.stdout
    assert 'value  {"n": 2}' in done.stdout
    assert "\x1b" not in done.stdout, "a header cannot control the terminal"
    described = json.loads((await run_command("topics", "orders", *servers, "--json")).stdout)
    assert [each["end"] for each in described["partitions"]] == [1, 1, 0]
    assert {"partition", "leader", "replicas", "inSync", "start", "end"} == set(
        described["partitions"][0]
    )
    assert described["newest"]["key"] == "b"


async def test_a_record_without_key_or_value_has_null(kafka: EmbeddedKafka, servers: list[str]):
    """JSON had the text "null" for a key or a value that is not there."""

    async def read_newest(record: RecordToSend) -> tuple[object, object]:
        await produce_records(kafka.bootstrap, "stock", [record])
        done = await run_command("topics", "stock", *servers, "--json")
        newest = json.loads(done.stdout)["newest"]
        return newest["key"], newest["value"]

    assert await read_newest(RecordToSend(b"a")) == (None, "a")
    assert await read_newest(RecordToSend(None, b"k")) == ("k", None)
    assert "value  null" in (await run_command("topics", "stock", *servers)).stdout


async def test_the_configuration_gives_servers_and_decodes(servers: list[str], tmp_path: Path):
    text = f"kafka: {{servers: '{servers[1]}', topics: [{{name: orders, value: {{model: int}}}}]}}"
    (tmp_path / "gateway.yaml").write_text(text)
    done = await run_command("topics", "orders")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "(not int: model int has 4 bytes, not 8)" in done.stdout


async def test_an_unknown_topic_is_reported_with_the_nearest(servers: list[str]):
    done = await run_command("topics", "order", *servers)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "gateway: no broker knows the topic order; did you mean 'orders'?\n"


async def test_a_kafka_that_is_away_is_named():
    done = await run_command("topics", "--servers", "127.0.0.1:1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "127.0.0.1:1" in done.stderr and done.stderr.count("\n") == 1


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
