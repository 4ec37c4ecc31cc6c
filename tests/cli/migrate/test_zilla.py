"""What a zilla.yaml becomes: its routes, guards, clusters and models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.migrations import SOURCES, Migration, migrate_file, migrate_text

from gateway.cli.migrate.report import OutcomeKind

BASE = """
name: base
bindings:
  tcp: {type: tcp, kind: server, options: {host: 127.0.0.1, port: 7114}, exit: http}
  http: {type: http, kind: server, exit: sse}
  sse: {type: sse, kind: server, exit: proxy}
  proxy:
    type: sse-kafka
    kind: proxy
    routes:
      - when: [{path: /events}]
        with: {topic: deliveries}
        exit: cache
  cache: {type: kafka, kind: cache_client, exit: client}
  client: {type: kafka, kind: client, options: {servers: ["kafka.example:9092"]}}
"""


def migrate_base(directory: Path, *changes: tuple[str, Any]) -> Migration:
    """Migrate the base with other values at paths such as `bindings/http/options`."""
    values = YAML(typ="safe").load(BASE)
    for path, value in changes:
        *parents, last = path.split("/")
        target = values
        for step in parents:
            target = target.setdefault(step, {}) if isinstance(target, dict) else target[int(step)]
        target[last] = value
    file = directory / "zilla.yaml"
    with file.open("w") as stream:
        YAML(typ="safe").dump(values, stream)
    return migrate_file(file)


def test_a_route_keeps_its_path_topic_and_port(tmp_path: Path):
    values = migrate_base(tmp_path).values
    assert values["routes"] == [{"path": "/events", "topic": "deliveries"}]
    assert values["listen"] == {"host": "127.0.0.1", "port": 7114}
    assert values["kafka"]["servers"] == ["kafka.example:9092"]


def test_topics_begin_at_the_oldest_record_as_in_zilla(tmp_path: Path):
    assert migrate_base(tmp_path).values["kafka"]["topics"] == [
        {"name": "deliveries", "defaultOffset": "historical"}
    ]


def test_a_condition_before_a_route_narrows_its_path():
    """Otherwise a route of every topic would be open where one topic was."""
    migration = migrate_file(SOURCES / "sse.kafka.jwt.yaml")
    route = migration.settings.routes[0]
    assert [when.path for when in route.when] == ["/deliveries"]
    assert str(route.stream.topic) == "deliveries"


def test_the_guards_of_all_bindings_on_the_way_are_required():
    migration = migrate_file(SOURCES / "sse.kafka.jwt.yaml")
    assert migration.settings.routes[0].guarded == {"users": ("read:deliveries",)}
    assert set(migration.values["guards"]["users"]["credentials"]) == {
        "headers", "query", "cookies"
    }  # fmt: skip


def test_guards_of_two_ways_to_a_route_are_both_required(tmp_path: Path):
    migration = migrate_base(
        tmp_path,
        ("bindings/sse", {"type": "sse", "kind": "server",
                          "routes": [{"guarded": {"users": ["a"]}, "exit": "proxy"}]}),
        ("bindings/other", {"type": "sse", "kind": "server", "exit": "proxy"}),
        ("guards", {"users": {"type": "jwt", "options": {
            "issuer": "https://login.example", "audience": "x"}}}),
    )  # fmt: skip
    assert migration.values["routes"][0]["guarded"] == {"users": ["a"]}


@pytest.mark.parametrize(
    "guard",
    [
        {"type": "inline", "options": {"identity": "ada", "credentials": "secret-of-a-test"}},
        {"type": "identity", "options": {}},
        {"type": "jwt", "options": {"issuer": "not a url"}},
        {"type": "jwt", "options": {"keys": [{"kty": "RSA", "n": "x", "kid": "k"}]}},
    ],
)
def test_a_route_whose_guard_cannot_be_kept_is_left_out(tmp_path: Path, guard: dict[str, Any]):
    """Without its guard, a route would be open to everybody."""
    migration = migrate_base(
        tmp_path,
        ("guards", {"users": guard}),
        ("bindings/proxy/routes", [
            {"when": [{"path": "/events"}], "with": {"topic": "deliveries"}, "exit": "cache"},
            {"when": [{"path": "/mine"}], "with": {"topic": "deliveries"}, "exit": "cache",
             "guarded": {"users": ["a"]}},
        ]),
    )  # fmt: skip
    paths = [when.path for route in migration.settings.routes for when in route.when]
    assert paths == ["/events"]
    outcome = migration.find("bindings.proxy.routes[1].with.topic")
    assert outcome.kind is OutcomeKind.OMITTED
    assert "secret-of-a-test" not in migration.text


def test_a_guard_for_kafka_becomes_its_user_in_kafka():
    sasl = migrate_file(SOURCES / "http.kafka.oneway.yaml").values["kafka"]["security"]["sasl"]
    assert sasl == {
        "mechanism": "scram-sha-512",
        "username": "${env.SASL_USERNAME}",
        "password": "${env.SASL_PASSWORD}",
    }


def test_a_secret_of_the_source_becomes_a_variable(tmp_path: Path):
    sasl = {"mechanism": "plain", "username": "ada", "password": "secret-of-a-test"}
    migration = migrate_base(tmp_path, ("bindings/client/options/sasl", sasl))
    assert "secret-of-a-test" not in migration.text
    assert "KAFKA_PASSWORD" in migration.draft.list_variables()


def test_a_shared_key_of_tokens_becomes_a_variable(tmp_path: Path):
    keys = [{"kty": "oct", "kid": "k", "k": "secret-of-a-test"}]
    migration = migrate_base(
        tmp_path,
        ("guards", {"users": {"type": "jwt", "options": {"issuer": "x", "keys": keys}}}),
        ("bindings/proxy/routes/0/guarded", {"users": []}),
    )
    assert "secret-of-a-test" not in migration.text
    assert migration.values["guards"]["users"]["keys"][0]["k"] == "${env.TOKEN_KEY}"


def test_numbers_of_keys_become_base64url(tmp_path: Path):
    """Zilla's examples have the modulus in base64, which is no JWK of RFC 7518."""
    keys = [{"kty": "EC", "kid": "k", "crv": "P-256",
             "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU=",
             "y": "x/FEzRu9m36HLN/tue659LNpXW6pCyStikYjKIWI5a0="}]  # fmt: skip
    migration = migrate_base(
        tmp_path,
        ("guards", {"users": {"type": "jwt", "options": {"audience": "a", "keys": keys}}}),
        ("bindings/proxy/routes/0/guarded", {"users": []}),
    )
    assert migration.values["guards"]["users"]["keys"][0]["y"].startswith("x_FEzRu9m36HLN_tue")


def test_a_document_of_many_records_becomes_a_snapshot():
    migration = migrate_file(SOURCES / "http.kafka.crud.yaml")
    by_path = {
        (route.when[0].path, route.get_method(route.when[0])): route
        for route in migration.settings.routes
    }
    assert by_path["/articles", "GET"].stream.mode == "snapshot"
    assert by_path["/articles/{id}", "GET"].with_.capability == "fetch"
    assert {method for _, method in by_path} == {"GET", "POST", "PUT", "DELETE"}


def test_models_keep_their_encoding_or_are_reported():
    migration = migrate_file(SOURCES / "http.kafka.crud.yaml")
    topics = {topic["name"]: topic for topic in migration.values["kafka"]["topics"]}
    assert topics["notes"]["value"] == {"model": "avro", "catalog": "schemas"}
    assert topics["drafts"]["key"] == {"model": "string"}
    assert topics["drafts"]["value"] == {"model": "json"}
    assert "value" not in topics["plans"]
    omitted = migration.list_omitted()
    assert "register" in omitted["bindings.cache_client.options.topics[2].value"]


def test_a_path_of_replies_has_the_id_as_a_segment():
    migration = migrate_file(SOURCES / "http.kafka.async.yaml")
    (route,) = migration.settings.routes
    assert [when.path for when in route.when] == ["/quotes/{id}"]
    assert str(route.with_.reply_location) == "/quotes/${params.id}/${correlationId}"


def test_a_route_without_a_method_takes_all_that_write():
    migration = migrate_file(SOURCES / "http.kafka.sync.yaml")
    (route,), (written,) = migration.settings.routes, migration.values["routes"]
    assert [when.method for when in route.when] == ["POST", "PUT", "PATCH", "DELETE"]
    assert written.keys() >= {"when", "topic"} and not written.keys() & {"with", "path"}


def test_tls_is_not_lost_where_its_keys_are_in_a_vault():
    """A gateway that listened without TLS would send tokens in the clear."""
    migration = migrate_file(SOURCES / "sse.kafka.jwt.yaml")
    assert migration.values["listen"]["tls"] == {
        "certificate": "${env.LISTEN_CERTIFICATE}",
        "key": "${env.LISTEN_KEY}",
    }
    assert {"LISTEN_CERTIFICATE", "LISTEN_KEY"} <= set(migration.draft.list_variables())


def test_of_several_ports_that_with_tls_is_kept(tmp_path: Path):
    migration = migrate_base(
        tmp_path,
        ("bindings/tcp", {"type": "tcp", "kind": "server",
                          "options": {"host": "0.0.0.0", "port": [7114, 7143]},
                          "routes": [{"when": [{"port": 7114}], "exit": "http"},
                                     {"when": [{"port": 7143}], "exit": "tls"}]}),
        ("bindings/tls", {"type": "tls", "kind": "server", "vault": "v",
                          "options": {"keys": ["a"], "mutual": "required"}, "exit": "http"}),
    )  # fmt: skip
    assert migration.values["listen"]["port"] == 7143
    assert migration.values["listen"]["tls"]["mutual"] == "required"
    assert migration.find("bindings.tcp.options.port[0]").kind is OutcomeKind.OMITTED


def test_a_client_certificate_is_a_guard(tmp_path: Path):
    migration = migrate_base(
        tmp_path,
        ("bindings/tcp/exit", "tls"),
        ("bindings/tls", {"type": "tls", "kind": "server", "vault": "v",
                          "options": {"keys": ["a"], "trust": ["b"]}, "exit": "http"}),
        ("bindings/proxy/routes/0/guarded", {"certified": []}),
        ("guards", {"certified": {"type": "x509", "options": {
            "identity": "subject.cn", "attributes": {"unit": "subject.ou", "id": "serial"}}}}),
    )  # fmt: skip
    guard = migration.values["guards"]["certified"]
    assert guard == {"type": "x509", "identity": "CN", "attributes": {"unit": "OU"}}
    outcome = migration.find("guards.certified.options.attributes.id")
    assert outcome.kind is OutcomeKind.OMITTED


def test_two_kafkas_are_two_clusters(tmp_path: Path):
    migration = migrate_base(
        tmp_path,
        ("bindings/cache", {"type": "kafka", "kind": "cache_client", "routes": [
            {"when": [{"topic": "deliveries"}], "exit": "client"},
            {"when": [{"topic": "stock"}], "exit": "other"}]}),
        ("bindings/other", {"type": "kafka", "kind": "client",
                            "options": {"servers": ["other.example:9092"]}}),
        ("bindings/proxy/routes", [
            {"when": [{"path": "/events"}], "with": {"topic": "deliveries"}, "exit": "cache"},
            {"when": [{"path": "/stock"}], "with": {"topic": "stock"}, "exit": "cache"}]),
    )  # fmt: skip
    clusters = migration.settings.clusters
    assert {name: kafka.servers for name, kafka in clusters.items()} == {
        "client": ("kafka.example:9092",), "other": ("other.example:9092",)
    }  # fmt: skip
    assert [route["kafka"] for route in migration.values["routes"]] == ["client", "other"]


def test_a_route_that_another_one_hides_is_reported(tmp_path: Path):
    route = {"when": [{"path": "/events"}], "with": {"topic": "deliveries"}, "exit": "cache"}
    migration = migrate_base(tmp_path, ("bindings/proxy/routes", [route, route]))
    assert len(migration.settings.routes) == 1
    outcome = migration.find("bindings.proxy.routes[1].with.topic")
    assert "taken by routes[0]" in outcome.reason


def test_a_websocket_to_kafka_is_a_stream(tmp_path: Path):
    migration = migrate_base(
        tmp_path,
        ("bindings/sse", {"type": "ws", "kind": "server", "routes": [
            {"when": [{"protocol": "x", "path": "/events"}], "exit": "proxy"}]}),
        ("bindings/proxy", {"type": "ws-kafka", "kind": "proxy", "routes": [
            {"with": {"topic": "deliveries"}, "exit": "cache"}]}),
    )  # fmt: skip
    assert [route.when[0].path for route in migration.settings.routes] == ["/events"]


def test_a_registry_of_apicurio_is_asked_by_its_api_for_confluents_clients(tmp_path: Path):
    migration = migrate_base(
        tmp_path,
        ("catalogs", {"c": {"type": "apicurio", "options": {
            "url": "http://apicurio.example:8080", "use-id": "contentId", "max-age": 10}}}),
    )  # fmt: skip
    assert migration.values["catalogs"]["c"] == {
        "type": "schema-registry",
        "url": "http://apicurio.example:8080/apis/ccompat/v7",
        "maxAge": "10s",
    }


def test_brokers_that_cannot_be_used_are_named_by_a_variable(tmp_path: Path):
    migration = migrate_base(tmp_path, ("bindings/client/options/servers", ["no port"]))
    assert "KAFKA_SERVERS" in migration.draft.list_variables()
    assert migration.find("bindings.client.options.servers[0]").kind is OutcomeKind.OMITTED


def test_comments_of_the_source_are_no_values(tmp_path: Path):
    migration = migrate_text(tmp_path, "zilla.yaml", f"# routes: []\n{BASE}")
    assert len(migration.settings.routes) == 1
