"""What a configuration of Centrifugo becomes: topics, routes of channels, and guards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.issuer import get_private_key
from support.migrations import SOURCES, Migration, migrate_file, migrate_text

from gateway.cli.migrate.report import OutcomeKind

CONSUMER = {
    "name": "shop",
    "enabled": True,
    "type": "kafka",
    "kafka": {
        "brokers": ["kafka.example:9092"],
        "topics": ["events"],
        "publication_data_mode": {"enabled": True},
    },
}
TOKEN = {"hmac_secret_key": "secret-of-a-test", "audience": "shop"}


def migrate(directory: Path, **sections: Any) -> Migration:
    values = {"client": {"token": TOKEN}, "consumers": [CONSUMER], **sections}
    return migrate_text(directory, "config.json", json.dumps(values))


def list_paths(migration: Migration) -> list[str]:
    return [route["path"] for route in migration.values["routes"]]


def find_route(migration: Migration, path: str) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in migration.values["routes"] if r["path"] == path)
    return found


def test_a_namespace_is_a_path_with_a_filter_for_its_channels(tmp_path: Path):
    namespace = {"name": "rooms", "allow_subscribe_for_client": True}
    migration = migrate(tmp_path, channel={"namespaces": [namespace]})
    route = find_route(migration, "/events/rooms/{channel}")
    assert route["filters"] == [{"headers": {"centrifugo-channels": "rooms:${params.channel}"}}]
    assert route["guarded"] == ["login"]
    assert route["topic"] == "events"


def test_commands_are_filtered_by_the_channel_in_their_value():
    migration = migrate_file(SOURCES / "centrifugo.commands.toml")
    route = find_route(migration, "/events/chat/{channel}")
    assert {"value": {"/payload/channel": "chat:${params.channel}"}} in route["filters"]
    assert route["fields"] == ["/payload/data", "/data"]
    assert route["topics"] == ["commands", "broadcasts"]


def test_a_token_for_a_channel_opens_that_channel(tmp_path: Path):
    migration = migrate(tmp_path, channel={"namespaces": [{"name": "rooms"}]})
    assert list_paths(migration) == ["/subscribed"]
    (route,) = migration.values["routes"]
    channel = "${guarded['subscription'].attributes.channel}"
    assert route["filters"] == [{"headers": {"centrifugo-channels": channel}}]
    assert migration.values["guards"]["subscription"]["attributes"] == {"channel": "channel"}


@pytest.mark.parametrize("option", ["allow_subscribe_for_client", "allow_user_limited_channels"])
def test_channels_without_a_namespace_open_no_other_ones(tmp_path: Path, option: str):
    """A path with the whole name of a channel would name those of every namespace."""
    migration = migrate(tmp_path, channel={"without_namespace": {option: True}})
    assert list_paths(migration) == ["/subscribed"]
    outcome = migration.find(f"channel.without_namespace.{option}")
    assert outcome.kind is OutcomeKind.OMITTED


def test_channels_of_other_users_are_not_opened(tmp_path: Path):
    """With user-limited channels, /events/rooms/talk%23bob would be a channel of bob's."""
    namespace = {
        "name": "rooms",
        "allow_subscribe_for_client": True,
        "allow_user_limited_channels": True,
    }
    migration = migrate(tmp_path, channel={"namespaces": [namespace]})
    assert list_paths(migration) == ["/events/rooms/{channel}/mine", "/subscribed"]
    (condition,) = find_route(migration, "/events/rooms/{channel}/mine")["filters"]
    assert condition["headers"]["centrifugo-channels"] == (
        "rooms:${params.channel}#${guarded['login'].identity}"
    )


def test_users_do_not_become_anybody_where_only_anonymous_clients_are_known(tmp_path: Path):
    """Without keys of tokens there is no guard; what was for users must not be open then."""
    namespaces = [
        {"name": "users", "allow_subscribe_for_client": True},
        {"name": "all", "allow_subscribe_for_anonymous": True},
    ]
    migration = migrate(
        tmp_path,
        client={"allow_anonymous_connect_without_token": True},
        channel={"namespaces": namespaces},
    )
    assert list_paths(migration) == ["/events/all/{channel}"]
    assert "guarded" not in migration.values["routes"][0]
    outcome = migration.find("channel.namespaces[0].allow_subscribe_for_client")
    assert outcome.kind is OutcomeKind.OMITTED


def test_without_keys_variables_say_who_may_connect(tmp_path: Path):
    namespace = {"name": "rooms", "allow_subscribe_for_client": True}
    migration = migrate(tmp_path, client={}, channel={"namespaces": [namespace]})
    assert migration.values["routes"][0]["guarded"] == ["login"]
    assert {"LOGIN_ISSUER", "LOGIN_AUDIENCE"} <= set(migration.draft.list_variables())


def test_a_pattern_of_issuers_is_not_dropped(tmp_path: Path):
    """Without it, tokens of every issuer with the key would be taken."""
    token = {**TOKEN, "issuer_regex": "https://a|https://b"}
    migration = migrate(tmp_path, client={"token": token})
    assert migration.values["guards"]["login"]["issuer"] == "${env.TOKEN_ISSUER}"


def test_a_connect_proxy_is_asked_by_a_guard(tmp_path: Path):
    connect = {"enabled": True, "endpoint": "https://app.example/connect", "timeout": "1s"}
    namespace = {"name": "rooms", "allow_subscribe_for_client": True}
    migration = migrate(
        tmp_path, client={"proxy": {"connect": connect}}, channel={"namespaces": [namespace]}
    )
    guard = migration.values["guards"]["login"]
    assert guard == {"type": "http", "url": "https://app.example/connect"}
    assert migration.find("client.proxy.connect.timeout").kind is OutcomeKind.OMITTED


@pytest.mark.parametrize(
    ("name", "algorithm", "kty"),
    [("rsa_public_key", "RS256", "RSA"), ("ecdsa_public_key", "ES256", "EC")],
)
def test_a_public_key_in_pem_is_a_jwk(tmp_path: Path, name: str, algorithm: str, kty: str):
    key = get_private_key(algorithm).public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    migration = migrate(tmp_path, client={"token": {name: pem, "audience": "shop"}})
    (jwk,) = migration.values["guards"]["login"]["keys"]
    assert jwk["kty"] == kty
    assert "d" not in jwk


def test_a_key_that_is_none_opens_nothing(tmp_path: Path):
    token = {"rsa_public_key": "no key", "issuer": "shop", "audience": "shop"}
    namespace = {"name": "rooms", "allow_subscribe_for_client": True}
    channel = {"namespaces": [namespace, {"name": "all", "allow_subscribe_for_anonymous": True}]}
    client = {"token": token, "allow_anonymous_connect_without_token": True}
    migration = migrate(tmp_path, client=client, channel=channel)
    assert list_paths(migration) == ["/events/all/{channel}"]


def test_the_history_of_a_namespace_is_how_far_back_its_route_goes():
    migration = migrate_file(SOURCES / "centrifugo.data.json")
    assert find_route(migration, "/events/orders/{channel}/mine")["history"] == "5400s"
    assert find_route(migration, "/events/rooms/{channel}")["history"] == "none"


def test_origins_limits_and_pings_are_carried():
    values = migrate_file(SOURCES / "centrifugo.data.json").values
    assert values["listen"]["access-control"]["allow"]["origins"] == ["https://shop.example"]
    assert values["listen"]["limits"] == {"connections": 5000, "perIdentity": 5}
    assert {route["heartbeat"] for route in values["routes"]} == {"12s"}
    assert values["name"] == "front-1"


@pytest.mark.parametrize(
    ("origins", "left"),
    [
        (["capacitor://localhost", "https://a.example/", "https://b.example"], [0, 2]),
        (["https://a.example/", "https://b.example/"], None),  # an empty list would allow all
    ],
)
def test_an_origin_that_is_refused_takes_no_other_with_it(tmp_path: Path, origins, left):
    token = {"token": TOKEN, "allowed_origins": origins}
    access = migrate(tmp_path, client=token).values.get("listen", {}).get("access-control")
    assert access == (
        None if left is None else {
            "policy": "cross-origin", "allow": {"origins": [origins[n] for n in left]}
        }
    )  # fmt: skip


def test_files_with_keys_are_named_and_content_is_a_variable(tmp_path: Path):
    for name in ("front.pem", "front.key"):
        (tmp_path / name).write_text("x")
    tls = {"enabled": True, "cert_pem": "front.pem", "key_pem": "front.key"}
    migration = migrate(tmp_path, http_server={"tls": tls})
    assert migration.values["listen"]["tls"] == {"certificate": "front.pem", "key": "front.key"}
    tls = {"enabled": True, "cert_pem": "-----BEGIN CERTIFICATE-----\nx", "key_pem": "x"}
    migration = migrate(tmp_path, http_server={"tls": tls})
    assert migration.values["listen"]["tls"]["certificate"] == "${env.LISTEN_CERTIFICATE}"


def test_texts_with_a_dollar_sign_stay_texts(tmp_path: Path):
    """`${...}` means nothing to Centrifugo, and here it is a variable."""
    token = {**TOKEN, "audience": "${env.HOME}"}
    migration = migrate(tmp_path, client={"token": token})
    guard = migration.settings.guards["login"]
    assert guard.model_dump()["audience"] == ("${env.HOME}",)


def test_a_consumer_of_other_brokers_is_reported(tmp_path: Path):
    other = {**CONSUMER, "name": "b", "kafka": {**CONSUMER["kafka"], "brokers": ["b:9092"]}}
    migration = migrate(tmp_path, consumers=[CONSUMER, other])
    assert migration.find("consumers[1].kafka.topics[0]").kind is OutcomeKind.OMITTED


def test_a_configuration_without_kafka_has_nothing_to_migrate(tmp_path: Path):
    consumer = {"name": "a", "enabled": True, "type": "redis_stream"}
    with pytest.raises(AssertionError, match="no route"):
        migrate(tmp_path, consumers=[consumer])
