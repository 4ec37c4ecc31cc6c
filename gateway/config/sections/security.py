"""How the gateway proves itself to the brokers, and the brokers to it: TLS and SASL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from pydantic import Field

from gateway.config.types.address import Url
from gateway.config.types.fields import File, Flag, SecretText, Text
from gateway.config.types.section import Problem, Section

Mechanism = Literal["plain", "scram-sha-256", "scram-sha-512", "oauthbearer"]


class Tls(Section):
    """TLS to the brokers; `tls: {}` trusts the system's authorities."""

    ca: File | None = Field(
        default=None, description="PEM authorities. For clusters with their own CA."
    )
    certificate: File | None = Field(default=None, description="PEM client chain. For mutual TLS.")
    key: File | None = Field(default=None, description="PEM client key. For mutual TLS.")
    key_password: SecretText | None = Field(
        default=None, description="Password of the key. For mutual TLS with an encrypted key."
    )
    verify: Flag = Field(
        default=True,
        description="Check the broker's certificate and name. For test clusters to turn off.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        for one, other in (("certificate", "key"), ("key", "certificate"), ("keyPassword", "key")):
            if one in raw and other not in raw:
                yield Problem((one,), f"'{one}' needs '{other}' too; add it", is_key=True)


class Sasl(Section):
    """Who the gateway is to the brokers."""

    mechanism: Mechanism = Field(description="As the listener of the brokers. For secured ones.")
    username: Text | None = Field(default=None, description="Principal. For plain and scram.")
    password: SecretText | None = Field(
        default=None, description="Its password. For plain and scram."
    )
    token: SecretText | None = Field(
        default=None, description="A fixed token. For oauthbearer in tests."
    )
    token_file: File | None = Field(
        default=None, description="A file with the token, read anew. For oauthbearer in Kubernetes."
    )
    token_url: Url | None = Field(
        default=None, description="Where tokens are issued. For oauthbearer client credentials."
    )
    client_id: Text | None = Field(default=None, description="For oauthbearer client credentials.")
    client_secret: SecretText | None = Field(
        default=None, description="For oauthbearer client credentials."
    )
    scope: Text | None = Field(default=None, description="For oauthbearer client credentials.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        mechanism = raw.get("mechanism")
        names = {"username", "password"}
        oauth = {"token", "tokenFile", "tokenUrl", "clientId", "clientSecret", "scope"}
        if mechanism == "oauthbearer":
            yield from _check_unused(raw, names, "oauthbearer")
            yield from _check_oauth(raw)
        elif mechanism in get_args(Mechanism):
            yield from _check_unused(raw, oauth, str(mechanism))
            for name in sorted(names - raw.keys()):
                yield Problem((), f"'{name}' is missing, {mechanism} needs it; add it", is_key=True)


def _check_unused(raw: Mapping[str, Any], names: set[str], mechanism: str) -> Iterable[Problem]:
    for name in sorted(names & raw.keys()):
        yield Problem((name,), f"'{name}' is not used by {mechanism}; remove it", is_key=True)


def _check_oauth(raw: Mapping[str, Any]) -> Iterable[Problem]:
    ways = [name for name in ("token", "tokenFile", "tokenUrl") if name in raw]
    if not ways:
        yield Problem((), "oauthbearer has no token; add tokenUrl, tokenFile or token", is_key=True)
    for name in ways[1:]:
        yield Problem((name,), f"'{name}' excludes '{ways[0]}'; keep one", is_key=True)
    needed = {"clientId", "clientSecret"}
    if "tokenUrl" in raw:
        for name in sorted(needed - raw.keys()):
            yield Problem((), f"'{name}' is missing, tokenUrl needs it; add it", is_key=True)
    elif ways:
        for name in sorted((needed | {"scope"}) & raw.keys()):
            yield Problem((name,), f"'{name}' is used with tokenUrl only; remove it", is_key=True)


class Security(Section):
    tls: Tls | None = Field(
        default=None, description="Encrypt to the brokers. For secured clusters."
    )
    sasl: Sasl | None = Field(
        default=None, description="Log in to the brokers. For secured clusters."
    )
