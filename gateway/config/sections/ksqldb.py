"""Define the section `sidecar.ksqldb`: a ksqlDB server, and queries for the back end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.types.address import AuthorityFile, Url
from gateway.config.types.fields import (
    Duration,
    Flag,
    HeaderText,
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
    """Return a statement on one line; the file may have it on several."""
    return validate_text(" ".join(value.split()) if isinstance(value, str) else value)


Sql: TypeAlias = Annotated[
    str, BeforeValidator(_validate_sql), WithJsonSchema({"type": "string", "minLength": 1})
]


class RowsBackend(Section):
    """The back end that gets rows, in POST requests."""

    host: Url = Field(
        default="http://localhost:8080",
        description="Base URL of the back end; default a container in the same pod.",
    )
    path: Text = Field(
        default="/kafka/ksqldb", description="Path that batches of rows are POSTed to."
    )
    timeout: Annotated[Duration, in_range(0.001, 3600)] = Field(
        default=30.0, description="How long a whole response may take."
    )


class RowsBatch(Section):
    """How many rows one request to the back end has; it is sent when a limit is reached."""

    rows: Annotated[Number, in_range(1, 100_000, str)] = Field(
        default=100, description="The most rows of a batch."
    )
    size: Annotated[Size, in_range(1, 1 << 30, format_size)] = Field(
        default=204_800, description="The most bytes of a batch."
    )
    linger: Annotated[Duration, in_range(0, 3600)] = Field(
        default=0.1, description="How long a row waits for others."
    )


class KsqlQuery(Section):
    """A query that runs as long as the sidecar runs."""

    name: HeaderText = Field(
        description="Name of the query in the header X-Ksqldb-Query, in logs and metrics."
    )
    query: Sql = Field(description="The SQL statement.")
    query_type: Literal["push", "pull"] = Field(
        default="push",
        description="push sends rows as they arrive, pull those that exist when the query starts.",
    )
    offset: Literal["latest", "earliest"] | None = Field(
        default=None,
        description="Where a push query begins at each start (auto.offset.reset); default the "
        "server's.",
    )
    table_scan_enable: Flag | None = Field(
        default=None,
        description="Whether a pull query may scan a whole table; default the server's.",
    )
    properties: dict[Text, Text] = Field(
        default={}, description="Further properties of the query, by ksqlDB's names."
    )
    batch: RowsBatch = Field(
        default=RowsBatch(),
        description="Limits of a request to the back end, which is sent at the first one.",
    )
    backend: RowsBackend | None = Field(
        default=None, description="The back end that gets the rows; default `ksqldb.backend`."
    )
    max_retries: Annotated[Number, in_range(0, 1000, str)] = Field(
        default=3,
        description="Retries of a batch that the back end refuses, before it is halved to find "
        "the row.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield the problem of a push query with LIMIT.

        A push query that ends is started again, so it would deliver its first rows again and again.
        """
        query, query_type = raw.get("query"), raw.get("queryType", "push")
        if query_type == "push" and isinstance(query, str) and _LIMIT.search(query):
            what = "ends after some rows, and would be restarted again and again; remove LIMIT"
            yield Problem(("query",), f"a push query with LIMIT {what}")


class Ksqldb(Section):
    """The ksqlDB server of a sidecar, and the queries that the sidecar runs."""

    old_names: ClassVar[Mapping[str, str]] = {"trust": "ca"}

    url: Url = Field(default="http://localhost:8088", description="Base URL of ksqlDB.")
    username: Text | None = Field(default=None, description="User name of Basic authentication.")
    password: SecretText | None = Field(default=None, description="Password of `username`.")
    ca: AuthorityFile | None = Field(
        default=None,
        description="PEM file of the authorities to trust; default the system's.",
    )
    begin_timeout: Annotated[Duration, in_range(0.1, 600)] = Field(
        default=30.0,
        description="How long ksqlDB may take to start a query.",
    )
    reconnect: Reconnect = Field(
        default=Reconnect.model_validate({"initial": "100ms", "max": "30s"}),
        description="Delays before a query that ended or failed is started again.",
    )
    backend: RowsBackend = Field(
        default=RowsBackend(), description="The back end that gets the rows."
    )
    queries: tuple[KsqlQuery, ...] = Field(
        default=(), description="Queries that run as long as the sidecar runs."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "password" in raw and "username" not in raw:
            yield Problem(("password",), "'password' needs 'username' too; add it", is_key=True)
        names: set[object] = set()
        queries = raw.get("queries")
        for index, query in enumerate(queries if isinstance(queries, (list, tuple)) else ()):
            name = query.get("name") if isinstance(query, Mapping) else None
            if isinstance(name, str):
                if name in names:
                    what = f"'{name}' is used twice; use another name"
                    yield Problem(("queries", index, "name"), what)
                names.add(name)
