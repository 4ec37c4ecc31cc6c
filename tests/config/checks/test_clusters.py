"""Several clusters: told from the options of one, and which of them a route is of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.config import Kafka, Settings, build_json_schema, dumps, iter_warnings, loads
from gateway.errors import ConfigError

EU = "eu: {servers: [a:9092], topics: [{name: orders}, {name: parcels}]}"
US = "us: {servers: [b:9092], topics: [{name: orders}, {name: pickups}]}"
BOTH = f"kafka: {{{EU}, {US}}}\n"


def route(**options: Any) -> str:
    path = "/a/{x}" if "${" in str(options) else "/a"
    return "routes: [" + json.dumps({"when": [{"path": path}], "with": options}) + "]\n"


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        loads(text)
    return str(error.value)


def test_names_of_clusters_are_told_from_the_options_of_one():
    one = loads("kafka: {servers: [a:9092]}")
    assert isinstance(one.kafka, Kafka) and list(one.clusters) == [""]
    both = loads(BOTH)
    assert list(both.clusters) == ["eu", "us"]
    assert both.clusters["us"].servers == ("b:9092",)
    assert {kafka.client_id for kafka in both.clusters.values()} == {"gateway-gateway"}
    assert list(loads(f"kafka: {{{EU}}}").clusters) == ["eu"], "one of several, so to speak"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kafka: {eu: {servrs: [a:9092]}}", "'servrs' in kafka.eu; did you mean 'servers'?"),
        ("kafka: {eu: {servers: a}}", "kafka.eu.servers: 'a' is not host:port"),
        ("kafka: {'e u': {servers: [a:9092]}}", "is no name of a cluster"),
        ("kafka: {server: [a:9092]}", "unknown key 'server' in kafka; did you mean 'servers'?"),
        ("kafka: {topics: [{name: orders}]}", "'servers' is missing in kafka"),
        ("kafka: {}", "'servers' is missing in kafka"),
        (
            "kafka: {eu: {servers: [a:9092], topics: [{name: t}, {name: t}]}}",
            "kafka.eu.topics[1].name: topic 't' is listed before",
        ),
        (
            "kafka: {eu: {servers: [a:9092], bootstrap: [x], topics: [{name: t}]}}",
            "kafka.eu.bootstrap[0]: unknown topic 'x'",
        ),
        (
            "kafka: {eu: {servers: [a:9092], topics: [{name: t, "
            "value: {model: avro, catalog: r}}]}}",
            "kafka.eu.topics[0].value.catalog: unknown catalog 'r'",
        ),
    ],
)
def test_what_is_wrong_in_one_is_told_in_its_own_place(text: str, said: str):
    assert said in refused(text)


@pytest.mark.parametrize(
    ("options", "cluster"),
    [
        ({"topic": "parcels"}, "eu"),
        ({"topic": "orders", "kafka": "us"}, "us"),
        ({"topics": ["orders", "pickups"]}, "us"),
        ({"topic": "par${params.x}"}, "eu"),
        ({"topic": "${params.x}", "allow": ["or*"], "kafka": "eu"}, "eu"),
    ],
)
def test_a_route_is_of_the_cluster_that_has_its_topics(options: dict[str, Any], cluster: str):
    made = loads(BOTH + route(**options))
    assert made.get_cluster_name(made.routes[0]) == cluster
    assert made.get_kafka(made.routes[0]) is made.clusters[cluster]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "orders"}, "topic 'orders' is in eu and us; add kafka: eu or kafka: us"),
        ({"topic": "or${params.x}"}, "is in eu and us"),
        ({"topic": "orders", "kafka": "uss"}, "unknown cluster 'uss'"),
        ({"topics": ["parcels", "pickups"]}, "no cluster has all of these topics"),
        ({"topic": "parcel"}, "unknown topic 'parcel'; did you mean 'parcels'?"),
        ({"topic": "pickups", "kafka": "eu"}, "unknown topic 'pickups'"),
        ({"topic": "${params.x}", "allow": ["*"]}, "add kafka: eu or kafka: us"),
    ],
)
def test_a_route_that_may_be_of_several_or_none_is_told_what_to_add(options, said):
    assert said in refused(BOTH + route(**options))


def test_where_there_is_one_there_is_nothing_to_choose():
    kafka = "kafka: {servers: [a:9092], topics: [{name: orders}]}\n"
    assert "'kafka' chooses among several" in refused(kafka + route(topic="orders", kafka="eu"))


def test_what_is_dumped_is_read_as_the_same():
    secret = "security: {sasl: {mechanism: plain, username: u, password: s3cret}}"
    text = f"kafka: {{eu: {{servers: [a:9092], {secret}}}, {US}}}\n" + route(topic="pickups")
    made = loads(text)
    written = dumps(made)
    assert "s3cret" not in written
    environ = {"KAFKA_EU_SECURITY_SASL_PASSWORD": "s3cret"}
    again = loads(written, environ=environ)
    assert again == made and isinstance(again, Settings)


def test_warnings_say_which_it_is():
    sasl = "security: {sasl: {mechanism: plain, username: u, password: '${env.P}'}}"
    made = loads(f"kafka: {{eu: {{servers: [a:9092], {sasl}}}, {US}}}", environ={"P": "x"})
    assert [each.split(":")[0] for each in iter_warnings(made)] == ["kafka.eu.security.sasl"]


@pytest.mark.parametrize(
    ("kafka", "wrong"),
    [
        ({"eu": {"servers": ["a:9092"]}, "us": {"servers": ["b:9092"]}}, []),
        ({"eu": {"servers": ["a:9092"]}, "us": {"servers": "b"}}, ["$.kafka.us.servers"]),
        ({"servers": ["a:9092"], "topics": [{"nam": "orders"}]}, ["$.kafka.topics[0]"] * 2),
    ],
)
def test_the_schema_tells_them_apart_too(kafka: dict[str, Any], wrong: list[str]):
    found = Draft202012Validator(build_json_schema()).iter_errors({"kafka": kafka})
    assert [error.json_path for error in found] == wrong
