"""Where schemas are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.config.types.address import Urls
from gateway.config.types.fields import Duration, Flag, SecretText, Text, in_range
from gateway.config.types.section import Problem, Section

from .security import Tls


class SchemaRegistry(Section):
    type: Literal["schema-registry"] = Field(description="The kind of catalog. For models.")
    url: Urls = Field(
        description="Base URL, or several that are tried in turn. For avro, protobuf, jsonschema."
    )
    username: Text | None = Field(
        default=None, description="Basic authentication. For secured registries."
    )
    password: SecretText | None = Field(
        default=None, description="Its password. For secured registries."
    )
    token: SecretText | None = Field(
        default=None, description="A bearer token, in place of them. For secured registries."
    )
    tls: Tls | None = Field(
        default=None, description="Other authorities, a certificate. For registries with their own."
    )
    timeout: Annotated[Duration, in_range(0.1, 60)] = Field(
        default=5.0, description="When a silent registry counts as away. For slow networks."
    )
    max_age: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=60.0,
        description="How long a subject's latest schema is taken for it. For who evolves them.",
    )
    auto_register: Flag = Field(
        default=True, description="Register schemas that come with records. For producers."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        for one, other in (("username", "password"), ("password", "username")):
            if one in raw and other not in raw:
                yield Problem((one,), f"'{one}' needs '{other}' too; add it", is_key=True)
        if "token" in raw and "username" in raw:
            yield Problem(("token",), "'token' excludes 'username'; keep one", is_key=True)
