"""`gateway token decode` shows where a client stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import build_config
from support.in_process_gateway import running_in_process_gateway
from support.records import RecordToSend, produce_records
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.core.log.record import NO_EPOCH, RETIRED_EPOCH
from gateway.core.token.resume_token import TokenWriter, TopicPositions, digest_text, seal_token
from gateway.core.token.signing import TokenSigner
from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 3})

SECRET = "a" * 32
VIEW = digest_text("view")
TOPICS = [
    TopicPositions("orders", "id", [5, None], [3, NO_EPOCH]),
    TopicPositions("stock", "", [10**10], [RETIRED_EPOCH]),
]
TEXT = TokenWriter("cluster", TOPICS, 1_700_000_000).to_text()
TOKEN = seal_token(TEXT, VIEW).decode()
SIGNED = seal_token(TEXT, TokenSigner([SECRET]).create_seal(VIEW, "route")).decode()


def decode(*arguments: str, stdin: str | bytes = "") -> Result:
    command = ["token", "decode", *arguments]
    return CliRunner().invoke(app, command, input=stdin, prog_name="gateway")


def decode_json(*arguments: str, stdin: str | bytes = "") -> dict[str, object]:
    result = decode(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "kafka: {servers: [a:9092], topics: [{name: stock}, {name: parcels}]}\n"
        f"tokens: {{secret: {SECRET}}}\n"
    )
    return file


def test_a_token_is_shown_as_a_table():
    result = decode(TOKEN, "--topic", "orders", "--topic", "stock")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "issued     2023-11-14T22:13:20Z",
        "signature  none",
        f"view       digest {VIEW.decode()}",
        f"cluster    digest {digest_text('cluster').decode()}",
        "",
        "TOPIC   PARTITION  NEXT OFFSET  LEADER EPOCH",
        "orders  0          5            3",
        "orders  1          pending      -",
        "stock   0          10000000000  earlier topic",
    ]


def test_a_token_is_shown_as_json_and_topics_of_unknown_name_by_their_digest():
    decoded = decode_json(TOKEN, "-t", "orders")
    assert decoded["partitions"] == [
        {
            "topic": name,
            "topicDigest": digest_text(digested).decode(),
            "partition": partition,
            "nextOffset": offset,
            "leaderEpoch": epoch,
            "isOfEarlierTopic": digested == "stock",
        }
        for name, digested, partition, offset, epoch in [
            ("orders", "orders", 0, 5, 3),
            ("orders", "orders", 1, None, None),
            (None, "stock", 0, 10**10, None),
        ]
    ]
    assert f"digest {digest_text('orders').decode()}  0 " in decode(TOKEN).stdout


@pytest.mark.parametrize("text", [TOKEN, f"{TOKEN}\n", f"id: {TOKEN}\r\n", f"id:{TOKEN}"])
def test_a_token_is_read_from_standard_input(text: str):
    assert decode_json("-", stdin=text) == decode_json(TOKEN)


def test_a_configuration_gives_names_and_checks_the_signature(config: Path):
    decoded = decode_json(SIGNED, "-c", str(config))
    assert [each["topic"] for each in decoded["partitions"]] == [None, None, "stock"]
    assert decoded["signature"] == "valid"
    config.write_text(config.read_text().replace(SECRET, "b" * 32))
    assert decode_json(SIGNED, "-c", str(config))["signature"] == "invalid"
    assert decode_json(TOKEN, "-c", str(config))["signature"] == "none"
    assert decode_json(SIGNED)["signature"] == "unchecked"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{TOKEN[:30]}%{TOKEN[31:]}", "character 31 is '%'"),
        (f"{TOKEN[:30]}-{TOKEN[31:]}", f"character 31 is '-' and was '{TOKEN[30]}'"),
        (TOKEN[:-9], "topic 2, which begins at character "),
        (b"\xff\n", r"character 1 is '\ufffd'"),
    ],
)
def test_a_damaged_token_is_a_failure_that_says_where(text: str | bytes, said: str):
    result = decode("-", stdin=text)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"gateway: the resume token is damaged: {said}")
    assert result.stderr.count("\n") == 1


def test_a_topic_that_the_token_does_not_have_is_a_failure():
    result = decode(TOKEN, "--topic", "ordrs")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("gateway: the resume token is not of a topic 'ordrs'; ")


def test_usage_and_configuration_have_exit_codes_of_their_own(config: Path):
    assert [decode().exit_code, decode(" ").exit_code, decode("-").exit_code] == [2, 2, 2]
    assert decode(TOKEN, "-c", "no-such.yaml").exit_code == 2
    config.write_text("kafak: {}\n")
    assert decode(TOKEN, "-c", str(config)).exit_code == 78


async def test_the_last_event_id_of_a_running_stream_is_decoded(kafka: EmbeddedKafka):
    bootstrap = kafka.bootstrap
    records = [RecordToSend(b"a", partition=0), RecordToSend(b"b", partition=2)]
    async with (
        running_in_process_gateway(build_config(bootstrap, ["orders"])) as (url, _),
        RawClient(f"{url}/events/orders?from=earliest") as client,
    ):
        await produce_records(bootstrap, "orders", [*records, records[0]])
        await client.wait_for_events(
            lambda events: sum(event["event"] == "message" for event in events) >= 3, 30
        )
        decoded = decode_json(client.last_event_id, "--topic", "orders")
    partitions = {each["partition"]: each["nextOffset"] for each in decoded["partitions"]}
    assert {each["topic"] for each in decoded["partitions"]} == {"orders"}
    assert (partitions[0], partitions[2]) == (2, 1)
    assert partitions.keys() == {0, 1, 2}
