"""Define the section `catalogs`: where the schemas of keys and values are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.config.types.address import Urls
from gateway.config.types.fields import Duration, Flag, SecretText, Text, in_range
from gateway.config.types.section import Problem, Section

from .security import Tls


class SchemaRegistry(Section):
    """A schema registry with the REST API of Confluent's."""

    type: Literal["schema-registry"] = Field(
        description="The kind of catalog. For models with schemas."
    )
    url: Urls = Field(
        description="Base URL, or several that are tried in order. For avro, protobuf and "
        "jsonschema."
    )
    username: Text | None = Field(
        default=None, description="User name of Basic authentication. For secured registries."
    )
    password: SecretText | None = Field(
        default=None, description="Password of `username`. For secured registries."
    )
    token: SecretText | None = Field(
        default=None,
        description="A bearer token, instead of `username` and `password`. For secured registries.",
    )
    tls: Tls | None = Field(
        default=None,
        description="Certificate authorities and a client certificate. For registries with a "
        "private authority or mutual TLS.",
    )
    timeout: Annotated[Duration, in_range(0.1, 60)] = Field(
        default=5.0,
        description="How long a registry may take to respond before it counts as unavailable. For "
        "slow networks.",
    )
    max_age: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=60.0,
        description="How long the latest schema of a subject is used before the registry is asked "
        "for a newer one. For teams that evolve schemas.",
    )
    auto_register: Flag = Field(
        default=True,
        description="Register the schemas that producers send with their records; if false, they "
        "must be registered already. For producers.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        for name, required in (("username", "password"), ("password", "username")):
            if name in raw and required not in raw:
                yield Problem((name,), f"'{name}' needs '{required}' too; add it", is_key=True)
        if "token" in raw and "username" in raw:
            yield Problem(("token",), "'token' excludes 'username'; keep one", is_key=True)
