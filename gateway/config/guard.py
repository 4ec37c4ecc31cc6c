"""Who a client is (guards), and where schemas are (catalogs)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter

from .address import Url, url
from .fields import Duration, SecretText, Text, within
from .section import Problem, Section, refused
from .substitution import shown


class Jwk(Section):
    """One key (RFC 7517). Members not named here are ignored, as its section 4 asks."""

    model_config = ConfigDict(extra="ignore", alias_generator=None)

    kty: Literal["RSA", "EC", "OKP", "oct"] = Field(description="Key type. For guards.")
    kid: Text | None = Field(default=None, description="Key id. For rotation.")
    alg: Text | None = Field(default=None, description="Such as RS256. For guards.")
    use: Text | None = Field(default=None, description="sig. For guards.")
    n: Text | None = Field(default=None, description="Modulus. For RSA.")
    e: Text | None = Field(default=None, description="Exponent. For RSA.")
    crv: Text | None = Field(default=None, description="Curve. For EC and OKP.")
    x: Text | None = Field(default=None, description="Coordinate. For EC and OKP.")
    y: Text | None = Field(default=None, description="Coordinate. For EC.")
    k: SecretText | None = Field(default=None, description="Shared secret, base64url. For oct.")

    @classmethod
    def look(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        needed = {"RSA": "ne", "EC": ("crv", "x", "y"), "OKP": ("crv", "x"), "oct": "k"}
        kind = raw.get("kty")
        for name in needed.get(kind, ()) if isinstance(kind, str) else ():
            if name not in raw:
                yield Problem((), f"'{name}' is missing, kty {kind} needs it; add it", key=True)
        if "d" in raw:
            yield Problem(("d",), "a private key does not belong here; remove 'd'", key=True)


def _keys(value: object) -> tuple[Jwk, ...] | str:
    """A list of keys, a JWKS text (as `${file:jwks.json}` gives), or a URL of one."""
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return url(value)
    keys = _of_text(value) if isinstance(value, str) else value
    if not isinstance(keys, (list, tuple)) or not keys:
        raise refused("holds no key; use a URL, a list of keys or ${file:jwks.json}")
    return _LIST.validate_python(keys)


def _of_text(value: str) -> list[object]:
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = None
    keys = read.get("keys") if isinstance(read, dict) else None
    if not isinstance(keys, list):
        raise refused(f"{shown(value)} is no JWKS; use a URL or ${{file:jwks.json}}")
    return keys


def _written(keys: tuple[Jwk, ...] | str) -> object:
    return keys if isinstance(keys, str) else [key.model_dump() for key in keys]


_LIST = TypeAdapter(tuple[Jwk, ...])


class Jwt(Section):
    type: Literal["jwt"] = Field(description="The kind of guard. For access control.")
    issuer: Text | None = Field(default=None, description="Required `iss`. For access control.")
    audience: Text | None = Field(default=None, description="Required `aud`. For access control.")
    keys: Annotated[
        tuple[Jwk, ...] | str,
        PlainValidator(_keys, json_schema_input_type=tuple[Jwk, ...] | str),
        PlainSerializer(_written, return_type=Any),
    ] = Field(description="Keys, or the URL of a JWKS. For access control.")
    roles: Text = Field(
        default="scope", description="The claim with the roles. For `guarded` of routes."
    )
    challenge: Annotated[Duration, within(0, 86_400)] = Field(
        default=30.0,
        description="How long before expiry a new token is asked for. For long streams.",
    )
    identity: Text = Field(
        default="sub", description="The claim that names the client. For templates."
    )
    attributes: dict[Text, Text] = Field(
        default={}, description="Names for further claims. For templates."
    )


class SchemaRegistry(Section):
    type: Literal["schema-registry"] = Field(description="The kind of catalog. For models.")
    url: Url = Field(description="Base URL. For avro, protobuf and jsonschema.")
    username: Text | None = Field(
        default=None, description="Basic authentication. For secured registries."
    )
    password: SecretText | None = Field(
        default=None, description="Its password. For secured registries."
    )

    @classmethod
    def look(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        for one, other in (("username", "password"), ("password", "username")):
            if one in raw and other not in raw:
                yield Problem((one,), f"'{one}' needs '{other}' too; add it", key=True)
