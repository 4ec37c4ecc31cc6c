"""What an AsyncAPI document becomes: a cluster, topics with models, and routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.migrations import SOURCES, Migration, migrate_file

from gateway.cli.migrate.report import OutcomeKind
from gateway.errors import GatewayError

BASE: dict[str, Any] = {
    "asyncapi": "3.0.0",
    "info": {"title": "Orders", "version": "1"},
    "servers": {"broker": {"host": "kafka.example:9092", "protocol": "kafka"}},
    "channels": {"placed": {"address": "orders.placed", "bindings": {"kafka": {}}}},
}


def migrate(directory: Path, **sections: Any) -> Migration:
    file = directory / "asyncapi.yaml"
    with file.open("w") as stream:
        YAML(typ="safe").dump({**BASE, **sections}, stream)
    return migrate_file(file)


def list_routes(migration: Migration) -> list[tuple[str, str, str]]:
    """The path, the topic and what is done, of each route."""
    return [
        (route["path"], route["topic"], route.get("capability", "stream"))
        for route in migration.values["routes"]
    ]


def test_channels_of_version_2_are_read_or_written():
    assert list_routes(migrate_file(SOURCES / "asyncapi-2.6.yaml")) == [
        ("/events/lights/{city}/measured", "lights.${params.city}.measured", "stream"),
        ("/events/lights.dim", "lights.dim", "produce"),
    ]


def test_operations_of_version_3_are_read_or_written():
    migration = migrate_file(SOURCES / "asyncapi-3.0.yaml")
    assert list_routes(migration) == [
        ("/events/orders.placed", "orders.placed", "stream"),
        ("/events/orders.requested", "orders.requested", "produce"),
        ("/events/shipments/{region}", "shipments.${params.region}", "stream"),
    ]
    assert migration.values["routes"][1]["replyTo"] == "orders.answered"


def test_the_values_of_parameters_are_topics():
    topics = migrate_file(SOURCES / "asyncapi-2.6.yaml").values["kafka"]["topics"]
    names = [topic["name"] for topic in topics]
    assert names == ["lights.berlin.measured", "lights.paris.measured", "lights.dim"]


def test_a_parameter_without_values_is_reported():
    migration = migrate_file(SOURCES / "asyncapi-2.6.yaml")
    assert "{unit}" in migration.list_omitted()["channels['lights/{unit}/raw']"]


def test_messages_are_models_and_their_registry_a_catalog():
    values = migrate_file(SOURCES / "asyncapi-2.6.yaml").values
    assert values["catalogs"]["registry"]["url"] == "http://registry.example:8081"
    topic = values["kafka"]["topics"][0]
    assert topic["value"] == {"model": "avro", "catalog": "registry"}
    assert topic["key"] == {"model": "string"}


def test_avro_without_a_registry_is_reported():
    migration = migrate_file(SOURCES / "asyncapi-3.0.yaml")
    (topic,) = [t for t in migration.values["kafka"]["topics"] if t["name"] == "shipments.eu"]
    assert "value" not in topic
    omitted = migration.list_omitted()["channels.shipments.messages.shipped.payload"]
    assert "registry" in omitted


def test_the_server_has_its_variables_and_security():
    migration = migrate_file(SOURCES / "asyncapi-2.6.yaml")
    kafka = migration.values["kafka"]
    assert kafka["servers"] == "kafka.example:9093"
    assert kafka["security"]["sasl"]["mechanism"] == "scram-sha-512"
    assert kafka["security"]["tls"] == {"ca": "${env.KAFKA_CA:}"}
    assert "KAFKA_PASSWORD" in migration.draft.list_variables()


def test_channels_of_other_protocols_are_reported():
    omitted = migrate_file(SOURCES / "asyncapi-2.6.yaml").list_omitted()
    assert "no channel of Kafka" in omitted["channels['lights/local']"]
    assert "mqtt" in omitted["servers.devices"]


def test_replies_to_single_clients_are_no_stream():
    """A stream of them would show everybody the replies to others."""
    migration = migrate_file(SOURCES / "asyncapi-3.0.yaml")
    assert "/events/orders.answered" not in [path for path, _, _ in list_routes(migration)]
    assert migration.find("channels.orderAnswered.address").target == ("kafka", "topics", 2)


def test_a_document_without_a_server_of_kafka_needs_a_variable(tmp_path: Path):
    migration = migrate(tmp_path, servers={})
    assert "KAFKA_SERVERS" in migration.draft.list_variables()


def test_a_reference_to_another_file_is_reported(tmp_path: Path):
    channels = {**BASE["channels"], "other": {"$ref": "./other.yaml#/channels/other"}}
    migration = migrate(tmp_path, channels=channels)
    assert "asyncapi bundle" in migration.list_omitted()["channels.other['$ref']"]


def test_references_in_a_circle_end(tmp_path: Path):
    channels = {
        **BASE["channels"],
        "a": {"$ref": "#/channels/b"},
        "b": {"$ref": "#/channels/a"},
    }
    migration = migrate(tmp_path, channels=channels)
    assert len(migration.values["routes"]) == 1


def test_a_channel_on_another_kafka_is_reported(tmp_path: Path):
    servers = {**BASE["servers"], "other": {"host": "other.example:9092", "protocol": "kafka"}}
    channels = {
        **BASE["channels"],
        "far": {"address": "far", "servers": [{"$ref": "#/servers/other"}]},
    }
    migration = migrate(tmp_path, servers=servers, channels=channels)
    assert migration.find("channels.far.address").kind is OutcomeKind.OMITTED
    assert [topic["name"] for topic in migration.values["kafka"]["topics"]] == ["orders.placed"]


def test_another_version_is_refused(tmp_path: Path):
    with pytest.raises(GatewayError, match="asyncapi convert"):
        migrate(tmp_path, asyncapi="1.2.0")
