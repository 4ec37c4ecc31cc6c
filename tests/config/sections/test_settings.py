from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import certifi
import pytest
from pydantic import ValidationError

from gateway.config import Rate, Reconnect, Settings, Template, iter_warnings, loads
from gateway.config.types.path import RESERVED_PATHS
from gateway.errors import ConfigError

SMALL: dict[str, Any] = {"kafka": {"servers": ["localhost:9092"], "topics": [{"name": "orders"}]}}


def settings(**more: Any) -> Settings:
    return Settings.model_validate({**SMALL, **more})


def test_a_small_file_has_the_documented_defaults():
    made = settings(routes=[{"when": [{"path": "/events"}], "with": {"topic": "orders"}}])
    topic, options = made.kafka.topics[0], made.routes[0].with_
    assert (made.name, made.memory, made.listen.host, made.listen.port) == (
        "gateway", 2**30, "127.0.0.1", 8080,
    )  # fmt: skip
    assert made.kafka.client_id == "gateway-gateway"
    assert (made.kafka.request_timeout, made.kafka.metadata_max_age) == (5.0, 2.0)
    assert (topic.default_offset, topic.partition_ready_timeout) == ("live", 5.0)
    assert (topic.offset_out_of_range, topic.isolation) == ("earliest", "read_committed")
    assert (topic.reconnect.initial, topic.reconnect.max) == (0.05, 1.0)
    assert (topic.cache.bytes, topic.cache.age, topic.clock_skew) == (64 * 2**20, 600.0, 60.0)
    assert (options.format, options.binary, options.heartbeat) == ("value", "error", 15.0)
    assert (options.history, options.slow_client, options.max_lifetime) == ("all", "catchUp", None)
    assert (options.mode, options.interval) == ("live", None)
    assert made.routes[0].get_method(made.routes[0].when[0]) == "GET"
    assert made.listen.access_control.policy == "same-origin"
    assert made.listen.websocket.compression is False
    assert made.telemetry.metrics.prometheus == "/metrics"


def test_a_topic_has_the_reconnect_of_kafka_unless_it_has_its_own():
    kafka = {
        "servers": "embedded",
        "reconnect": {"initial": "10ms", "max": "2s"},
        "topics": [{"name": "a"}, {"name": "b", "reconnect": {"max": "1s"}}],
    }
    made = Settings.model_validate({"kafka": kafka}).kafka
    assert made.servers == "embedded"
    assert made.topics[0].reconnect == made.reconnect
    assert made.topics[1].reconnect == Reconnect.model_validate({"max": "1s"})
    assert made.find_topic("b") is made.topics[1]
    assert made.find_topic("c") is None


def test_units_and_choices_are_typed():
    made = settings(
        name="shop",
        memory="2GiB",
        routes=[
            {
                "when": [{"path": "/e/{c}"}],
                "with": {
                    "topics": ["orders"], "history": "24h", "heartbeat": "5s", "maxLifetime": "1h",
                    "slowClient": "conflate", "filters": [{"key": "${params.c}"}],
                    "mode": "snapshot", "interval": "250ms", "maxRate": "90/m",
                },
            }
        ],
    )  # fmt: skip
    options = made.routes[0].with_
    assert made.memory == 2 * 2**30
    assert made.kafka.client_id == "gateway-shop"
    assert (options.history, options.heartbeat, options.max_lifetime) == (86400.0, 5.0, 3600.0)
    assert (options.mode, options.interval, options.slow_client) == ("snapshot", 0.25, "conflate")
    assert options.max_rate == Rate(90, 60.0)
    assert [str(topic) for topic in options.topic_templates] == ["orders"]
    key = options.filters[0].key
    assert isinstance(key, Template) and key.render(params={"c": "7"}) == "7"
    assert made.routes[0].when[0].pattern.match("/e/7") == {"c": "7"}


FULL = """\
name: orders
listen: {host: 127.0.0.1, port: 8080}
kafka:
  servers: [localhost:9092]
  bootstrap: [orders]
  topics:
    - name: orders
      defaultOffset: live
      partitionReadyTimeout: 5s
      offsetOutOfRange: earliest
      reconnect: {initial: 50ms, max: 1s}
      cache: {bytes: 64MiB, age: 10m}
      isolation: read_committed
      clockSkew: 60s
      key: {model: string}
      value: {model: avro, catalog: registry0}
      transforms: [{extract-headers: {region: "${message.value.region}"}}]
routes:
  - when: [{path: "/events/{customer}"}]
    guarded: {jwt0: ["orders:read"]}
    with:
      topic: orders
      filters:
        - key: "${params.customer}"
          headers: {tenant: "${guarded['jwt0'].attributes.tenant}"}
          value: {/owner: "${guarded['jwt0'].identity}", /region: "${query.region}"}
      format: value
      heartbeat: 15s
      history: 24h
      slowClient: catchUp
guards:
  jwt0: {type: jwt, issuer: https://id, audience: shop, keys: https://id/jwks,
         attributes: {tenant: org.tenant}}
catalogs: {registry0: {type: schema-registry, url: http://localhost:8081}}
telemetry: {metrics: {prometheus: /metrics}, traces: {otlp: http://localhost:4318}}
"""


def test_a_full_file_is_read_to_its_last_word():
    made = loads(FULL)
    assert list(iter_warnings(made)) == []
    (route,) = made.routes
    assert route.guarded == {"jwt0": ("orders:read",)}
    assert route.with_.topic is not None and route.with_.topic.literal == "orders"
    (condition,) = route.with_.filters
    given: dict[str, Any] = {
        "params": {"customer": "7"},
        "query": {"region": "eu"},
        "identity": {"jwt0": "ann"},
        "attributes": {"jwt0": {"tenant": "t1"}},
    }
    assert condition.render(lambda template: template.render(**given)) == {
        "key": "7",
        "headers": {"tenant": "t1"},
        "value": {"/owner": "ann", "/region": "eu"},
    }
    assert made.kafka.topics[0].value.catalog == "registry0"
    assert made.catalogs["registry0"].url == ("http://localhost:8081",)
    assert made.telemetry.traces.otlp == "http://localhost:4318"


def test_settings_are_frozen_and_compare_by_value():
    made = settings()
    with pytest.raises(ValidationError, match="frozen"):
        made.name = "other"  # type: ignore[misc]
    assert made == settings()
    assert made != settings(name="other")


def test_what_is_wrong_in_python_is_told_by_path():
    with pytest.raises(ValidationError) as raised:
        settings(routes=[{"when": [{"path": "/e"}], "with": {"topic": "order"}}], memory=5)
    told = {error["loc"]: error["msg"] for error in raised.value.errors()}
    assert "did you mean 'orders'?" in told["routes", 0, "with", "topic"]
    assert "no unit" in told["memory",]


def test_zilla_words_are_read_where_zilla_has_them():
    made = settings(
        listen={
            "access-control": {
                "policy": "cross-origin",
                "allow": {"origins": ["https://shop.example"], "credentials": True},
                "max-age": "1h",
                "expose": {"headers": ["x-a"]},
            }
        },
        guards={"jwt0": {"type": "jwt", "keys": "https://a/jwks", "attributes": {"r": "region"}}},
    )
    control = made.listen.access_control
    assert (control.max_age, control.allow.credentials) == (3600.0, True)
    assert control.expose.headers == ("x-a",)
    assert made.guards["jwt0"].keys == "https://a/jwks"
    kafka = {"servers": "embedded", "topics": [{"name": "a", "transforms": [
        {"extract-key": "${message.value.id}", "extract-headers": {"r": "${message.value.r}"}}
    ]}]}  # fmt: skip
    transform = Settings.model_validate({"kafka": kafka}).kafka.topics[0].transforms[0]
    assert transform.extract_headers["r"].extract(None, {"r": "eu"}) == "eu"


def test_files_are_found_from_the_folder_of_the_configuration(tmp_path: Path):
    shutil.copy(certifi.where(), tmp_path / "ca.pem")
    text = "kafka: {servers: embedded, security: {tls: {ca: ca.pem}}}\n"
    tls = loads(text, name=str(tmp_path / "a.yaml")).kafka.security.tls
    assert tls is not None
    assert tls.ca == tmp_path / "ca.pem"
    assert tls.verify


def test_a_file_of_authorities_without_any_is_refused(tmp_path: Path):
    """It was found by the start that it failed, and `check` said ok."""
    (tmp_path / "ca.pem").write_text("hello")
    text = "kafka: {servers: embedded, security: {tls: {ca: ca.pem}}}\n"
    with pytest.raises(ConfigError) as caught:
        loads(text, name=str(tmp_path / "a.yaml"))
    assert "kafka.security.tls.ca: file" in str(caught.value)
    assert "no certificates in PEM" in str(caught.value)


def test_secrets_are_never_printed(tmp_path: Path):
    text = (
        "kafka: {servers: embedded, security: {sasl: {mechanism: plain, username: u,"
        " password: '${env.P}'}}}\n"
        "guards: {g: {type: jwt, keys: [{kty: oct, k: hunter3}]}}\n"
    )
    made = loads(text, environ={"P": "hunter2"})
    sasl = made.kafka.security.sasl
    assert sasl is not None and sasl.password is not None
    assert sasl.password.get_secret_value() == "hunter2"
    for shown in (repr(made), str(made), made.model_dump_json(), str(made.model_dump())):
        assert "hunter" not in shown


def test_keys_of_a_guard_come_from_a_jwks_file(tmp_path: Path):
    modulus = base64.urlsafe_b64encode((2**2047 + 1).to_bytes(256)).decode().rstrip("=")
    key = {"kty": "RSA", "kid": "1", "n": modulus, "e": "AQAB", "x5c": ["ignored"]}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [key]}))
    text = "kafka: {servers: embedded}\nguards: {g: {type: jwt, keys: '${file:jwks.json}'}}\n"
    keys = loads(text, name=str(tmp_path / "a.yaml")).guards["g"].keys
    assert [key.kid for key in keys if not isinstance(key, str)] == ["1"]


def test_every_path_of_the_gateway_itself_is_reserved():
    own = {"/", "/asyncapi.json", "/gateway.js", "/gateway.d.ts", "/ws"}
    assert own | {"/health/live", "/health/ready"} <= RESERVED_PATHS
