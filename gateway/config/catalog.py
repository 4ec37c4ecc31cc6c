"""Where schemas are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from .address import Url
from .fields import SecretText, Text
from .section import Problem, Section


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
