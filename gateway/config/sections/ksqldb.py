"""The ksqlDB server of a sidecar, and the queries whose rows it hands to the back end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.types.address import Url
from gateway.config.types.fields import (
    Duration,
    File,
    Flag,
    Number,
    SecretText,
    Size,
    Text,
    in_range,
    validate_text,
)
from gateway.config.types.section import Problem, Section
from gateway.config.types.units import format_size

from .kafka import Reconnect

_LIMIT = re.compile(r"\blimit\s+\d+\s*;?\s*$", re.IGNORECASE)


def _validate_sql(value: object) -> str:
    """On as many lines as one likes."""
    return validate_text(" ".join(value.split()) if isinstance(value, str) else value)


Sql: TypeAlias = Annotated[
    str, BeforeValidator(_validate_sql), WithJsonSchema({"type": "string", "minLength": 1})
]


class RowsBackend(Section):
    """Whom rows are handed to."""

    host: Url = Field(
        default="http://localhost:8080", description="Its base URL. For back ends in the same pod."
    )
    path: Text = Field(
        default="/kafka/ksqldb", description="Where batches of rows are POSTed to. For back ends."
    )
    timeout: Annotated[Duration, in_range(0.001, 3600)] = Field(
        default=30.0, description="How long one answer may take. For slow back ends."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        path = raw.get("path", "/")
        if isinstance(path, str) and not path.startswith(("/", "${")):
            yield Problem(("path",), f"'{path}' is no path; write '/{path}'")


class RowsBatch(Section):
    rows: Annotated[Number, in_range(1, 100_000, str)] = Field(
        default=100, description="The most in one. For the pace of back ends."
    )
    size: Annotated[Size, in_range(1, 1 << 30, format_size)] = Field(
        default=204_800, description="The most bytes of rows in one. For back ends."
    )
    linger: Annotated[Duration, in_range(0, 3600)] = Field(
        default=0.1, description="How long a row waits for others. For delay against load."
    )


class KsqlQuery(Section):
    """A query that is asked as long as the sidecar runs."""

    name: Text = Field(description="In the header X-Ksqldb-Query, logs and metrics. For operators.")
    query: Sql = Field(description="Its SQL. For back ends.")
    query_type: Literal["push", "pull"] = Field(
        default="push",
        description="push: rows as they come, for ever; pull: those there are at the start. For "
        "back ends.",
    )
    offset: Literal["latest", "earliest"] | None = Field(
        default=None,
        description="auto.offset.reset: where a push query begins, each time that it does; default "
        "as the server is set. For back ends that want all rows anew.",
    )
    table_scan_enable: Flag | None = Field(
        default=None, description="Whether a pull query may read a whole table. For small tables."
    )
    properties: dict[Text, Text] = Field(
        default={}, description="Further properties of the query. For users of ksqlDB."
    )
    batch: RowsBatch = Field(default=RowsBatch(), description="Rows of one call. For back ends.")
    backend: RowsBackend | None = Field(
        default=None, description="Who gets them; default ksqldb.backend. For several back ends."
    )
    max_retries: Annotated[Number, in_range(0, 1000, str)] = Field(
        default=3,
        description="Of a batch that is refused, before it is taken apart. For back ends.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        query, kind = raw.get("query"), raw.get("queryType", "push")
        if kind == "push" and isinstance(query, str) and _LIMIT.search(query):
            what = "ends after some rows, and would be begun again for ever; remove LIMIT"
            yield Problem(("query",), f"a push query with LIMIT {what}")


class Ksqldb(Section):
    url: Url = Field(
        default="http://localhost:8088", description="Where ksqlDB is. For its queries."
    )
    username: Text | None = Field(
        default=None, description="Basic authentication. For secured servers."
    )
    password: SecretText | None = Field(
        default=None, description="Its password. For secured servers."
    )
    trust: File | None = Field(
        default=None,
        description="PEM file of the authorities whose certificates are believed; default the "
        "system's. For servers with one of their own.",
    )
    begin_timeout: Annotated[Duration, in_range(0.1, 600)] = Field(
        default=30.0, description="Until a query has columns. For servers that plan long."
    )
    reconnect: Reconnect = Field(
        default=Reconnect.model_validate({"initial": "100ms", "max": "30s"}),
        description="Waits before a query is begun again. For operators.",
    )
    backend: RowsBackend = Field(
        default=RowsBackend(), description="Who gets the rows of queries. For back ends."
    )
    queries: tuple[KsqlQuery, ...] = Field(
        default=(), description="What is asked as long as the sidecar runs. For back ends."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "password" in raw and "username" not in raw:
            yield Problem(("password",), "'password' needs 'username' too; add it", is_key=True)
        seen: set[object] = set()
        queries = raw.get("queries")
        for index, each in enumerate(queries if isinstance(queries, (list, tuple)) else ()):
            name = each.get("name") if isinstance(each, Mapping) else None
            if isinstance(name, str) and name in seen:
                yield Problem(("queries", index, "name"), f"'{name}' is there twice; name another")
            seen.add(name)
