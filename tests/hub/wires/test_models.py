"""Models, applied to the entries of a topic."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from support.app_server import running_app
from support.registry import FakeRegistry

from gateway.config import Settings, Topic
from gateway.core.log.record import Entry, Gap, GapReason, Record, Skip, TopicPartition
from gateway.errors import RegistryUnavailable
from gateway.formats import create_format
from gateway.formats.codec import MAX_PARALLEL_LOADS
from gateway.formats.exact_values import InvalidValue, RawValue, wrap_format
from gateway.hub.wires.models import Models

TP = TopicPartition("orders", 0)
GOOD, OTHER, BAD = b"\0\0\0\0\1\x0a", b"\0\0\0\0\2\x06ada", b"bad"


def record(offset: int, value: bytes | None, key: bytes | None = None) -> Record:
    return Record(TP, offset, 3, -1, key, value)


@pytest.fixture
async def fake() -> FakeRegistry:
    made = FakeRegistry()
    made.register_schema("orders-value", '"int"')
    made.register_schema("orders-value", '"string"')
    return made


@pytest.fixture
async def url(fake: FakeRegistry) -> AsyncIterator[str]:
    async with running_app(fake.app) as url:
        yield url


def running_models(url: str, on_invalid: str = "error", key: str = "bytes") -> Models:
    value = {"model": "avro", "catalog": "r", "onInvalid": on_invalid}
    topic: dict[str, Any] = {"name": "orders", "value": value, "key": {"model": key}}
    settings = Settings.model_validate(
        {
            "kafka": {"servers": ["a:9092"], "topics": [topic]},
            "catalogs": {"r": {"type": "schema-registry", "url": url}},
        }
    )
    kafka = settings.clusters[""]
    return Models(settings, lambda name: kafka.find_topic(name) or Topic(name=name))


async def test_what_comes_before_an_unknown_schema_is_handed_on(fake: FakeRegistry, url: str):
    made = running_models(url)
    understand = made.get_topic_model("orders")
    assert understand is not None
    gap = Gap(TP, 0, 1, 3, GapReason.RETENTION)
    entries: list[Entry] = [gap, record(1, None), record(2, GOOD), record(3, OTHER)]
    found, ask = understand(entries)
    assert (list(found), ask is not None) == ([gap, record(1, None)], True)
    assert ask is not None
    await ask()
    assert fake.requests.total() == 2, "both of them at once"
    found, ask = understand(entries)
    assert ask is None
    assert [each.value for each in found if isinstance(each, Record)] == [None, b"5", b'"ada"']
    await made.close()


async def test_of_many_unknown_schemas_some_are_asked_for_at_a_time(fake: FakeRegistry, url: str):
    """All of a fetch were asked for at once, and had to be kept until the last one was there."""
    for number in range(3, 10):
        fake.register_schema("orders-value", {"type": "int", "doc": str(number)})
    understand = running_models(url).get_topic_model("orders")
    assert understand is not None
    entries = [record(id, b"\0" + id.to_bytes(4, "big") + b"\x0a") for id in range(1, 10)]
    found, ask = understand(entries)
    asked_before = 0
    while ask is not None:
        await ask()
        assert 0 < fake.requests.total() - asked_before <= MAX_PARALLEL_LOADS
        asked_before = fake.requests.total()
        found, ask = understand(entries)
    assert len(found) == len(entries)


async def test_a_registry_that_is_away_is_told_to_who_asks(fake: FakeRegistry, url: str):
    made = running_models(url)
    understand = made.get_topic_model("orders")
    assert understand is not None
    fake.error_status = 503
    found, ask = understand([record(1, GOOD)])
    assert not found and ask is not None
    with pytest.raises(RegistryUnavailable):
        await ask()
    with pytest.raises(RegistryUnavailable) as told:
        await made.encode_record("orders", None, b"5")
    assert told.value.retry_after == 1.0
    await made.close()


@pytest.mark.parametrize(("on_invalid", "kind"), [("error", InvalidValue), ("raw", RawValue)])
async def test_what_is_none_of_it_keeps_its_bytes(url: str, on_invalid: str, kind: type):
    made = running_models(url, on_invalid)
    understand = made.get_topic_model("orders")
    assert understand is not None
    ((found,), ask) = understand([record(1, BAD)])
    assert isinstance(found, Record) and ask is None
    assert (type(found.value), bytes(found.value or b"")) == (kind, BAD)
    assert made.invalid == {("orders", on_invalid): 1}


@pytest.mark.parametrize(
    "frame", [b"\0\0\0\0\1", b"\1" + UUID(int=1).bytes, b"\1" + UUID(int=9).bytes]
)
async def test_the_schema_may_be_named_in_a_header(url: str, frame: bytes):
    """Confluent's clients 8 write it there; the bytes were said not to be Avro.

    Kafka Streams hands on the header of its input, and adds its own: the last one counts.
    """
    understand = running_models(url, "raw").get_topic_model("orders")
    assert understand is not None
    headers = (("__value_schema_id", b"\0\0\0\0\5"), ("__value_schema_id", frame))
    entry = record(1, GOOD[5:])._replace(headers=headers)
    result = understand([entry])
    assert result.load_schemas is not None
    await result.load_schemas()
    (found,) = understand([entry]).entries
    assert isinstance(found, Record) and found.headers == headers
    is_known = frame[-1] == 1
    assert (type(found.value), found.value) == ((bytes, b"5") if is_known else (RawValue, b"\x0a"))


async def test_what_is_skipped_leaves_no_hole(url: str):
    understand = running_models(url, "skip").get_topic_model("orders")
    assert understand is not None
    assert list(understand([record(1, BAD), record(2, None)]).entries) == [
        Skip(TP, 1, 2, 3), record(2, None),
    ]  # fmt: skip


async def test_a_key_that_is_none_of_its_model_makes_the_record_invalid(url: str):
    understand = running_models(url, key="long").get_topic_model("orders")
    assert understand is not None
    good = record(1, None, (7).to_bytes(8, "big"))
    found = understand([good, record(2, None, b"x")]).entries
    assert isinstance(found[0], Record) and found[0].key == b"7"
    assert isinstance(found[1], Record) and isinstance(found[1].value, InvalidValue)
    assert found[1].value.reason.startswith("its key: model long has 8 bytes")


def test_values_that_are_no_json_are_counted_and_the_first_is_logged(url: str, caplog):
    models = running_models(url)
    for offset in (7, 8):
        models.count_unreadable(record(offset, b"NaN"))
    assert models.invalid == {("orders", "not-json"): 2}
    (line,) = [line.message for line in caplog.records if "no JSON" in line.message]
    assert "orders-0 offset 7" in line


@pytest.mark.parametrize(
    ("content_type", "shown"),
    [(b"application/avro", "application/json"), (b"application/x+json", "application/x+json")],
)
def test_the_data_of_a_decoded_cloudevent_is_json(url: str, content_type: bytes, shown: str):
    """It was a text with JSON in it, still called application/avro."""
    decoded = running_models(url).select_decoded(["orders", "else"])
    format = wrap_format(create_format("cloudevents"), "cloudevents", decoded)
    headers = (("ce_specversion", b"1.0"), ("content-type", content_type))
    for topic, is_decoded in (("orders", True), ("else", False)):
        entry = Record(TopicPartition(topic, 0), 1, 0, -1, None, b'{"n":1}', headers)
        event = json.loads(format(entry)[1])
        if is_decoded or shown != "application/json":
            assert (event["datacontenttype"], event["data"]) == (shown, {"n": 1})
        else:
            assert (event["datacontenttype"], event["data"]) == ("application/avro", '{"n":1}')


async def test_topics_that_are_passed_on_as_they_are_cost_nothing(url: str):
    assert running_models(url).get_topic_model("else") is None


@pytest.mark.parametrize("name", ["value", "envelope", "cloudevents"])
def test_an_invalid_record_is_an_error_event_in_every_format(name: str):
    shown = wrap_format(create_format(name), name)
    kind, payload = shown(record(4, InvalidValue.create(BAD, "why not")))
    told = json.loads(payload)
    assert kind == "error"
    assert (told["code"], told["offset"]) == ("value-invalid", 4)
    assert "why not" in told["message"]
    assert shown(record(4, b"{}")) == create_format(name)(record(4, b"{}"))
