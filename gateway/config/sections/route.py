"""Define the section `routes`: which paths stream, show or write which records, and to whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter

from gateway.config.source.template import Template
from gateway.config.types.condition import Filter, RequestTemplate
from gateway.config.types.fields import (
    Choice,
    Duration,
    Flag,
    History,
    Pointer,
    Rate,
    Text,
    TopicGlob,
    TopicName,
    in_range,
    validate_text,
)
from gateway.config.types.formats import EVENT_FORMATS
from gateway.config.types.path import PathPattern
from gateway.config.types.section import Problem, Section, create_value_error

from .listen import AccessControl
from .produce import Async, Correlation, WriteTemplate, check_methods, check_with


def _validate_path(value: object) -> str:
    path = validate_text(value)
    try:
        PathPattern.parse(path)
    except ValueError as error:
        raise create_value_error(str(error)) from None
    return path


RoutePath = Annotated[str, BeforeValidator(_validate_path)]


class When(Section):
    """A path of a route, and the method that it answers to."""

    path: RoutePath = Field(
        description="Path such as /events/{customer}; a `*` at the end matches the rest. For "
        "clients."
    )
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | None = Field(
        default=None,
        description="HTTP method; default GET, or POST with `capability: produce`. For clients.",
    )

    @property
    def pattern(self) -> PathPattern:
        """The path as a pattern to match requests with."""
        return PathPattern.parse(self.path)


class Shown(Section):
    """A field that only clients with certain roles are shown."""

    field: Pointer = Field(description="JSON pointer of the field. For data protection.")
    guarded: dict[Text, tuple[Text, ...]] = Field(
        description="Guards of the route, each with the roles that it must grant; all of them "
        "must. For masking by role.",
        json_schema_extra={"minProperties": 1},
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield the problem of a field that nobody guards."""
        if raw.get("guarded") == {}:
            yield Problem(("guarded",), "is empty; name a guard, or write the pointer alone")


_POINTER_ADAPTER = TypeAdapter(Pointer)


def _validate_shown_field(value: object) -> str | Shown:
    """Return a JSON pointer, or a field with guards.

    The two are distinguished here, because pydantic reports the errors of every member of a union.
    """
    if isinstance(value, (Shown, Mapping)):
        return Shown.model_validate(value)
    return _POINTER_ADAPTER.validate_python(value)


ShownField = Annotated[
    str | Shown, PlainValidator(_validate_shown_field, json_schema_input_type=Pointer | Shown)
]


class With(Section):
    """What a route does, with which topics, and how records are filtered, shown and sent."""

    capability: Literal["stream", "fetch", "produce"] = Field(
        default="stream",
        description="What a request does: `stream` opens a stream of records, `fetch` gets the "
        "latest record of a key as a document, `produce` writes its body as a record. For clients.",
    )
    topic: RequestTemplate | None = Field(
        default=None, description="The topic to read or write. For clients."
    )
    topics: tuple[RequestTemplate, ...] = Field(
        default=(),
        description="Several topics in one stream, instead of `topic`. For clients that need them "
        "in order of arrival.",
    )
    kafka: Text | None = Field(
        default=None,
        description="Name of the Kafka cluster, if `kafka` has several; default the one that lists "
        "the topics. For topics that several clusters list.",
    )
    allow: tuple[TopicGlob, ...] = Field(
        default=(),
        description="Topics, or patterns of them, that clients may choose in the path, which then "
        "may also name a list or a pattern; default those of kafka.topics. For dashboards.",
    )
    filters: tuple[Filter, ...] = Field(
        default=(),
        description="A record is sent if any of these filters matches; default all records are. "
        "For clients that need some of the records.",
    )
    client_filters: Flag = Field(
        default=False,
        description="Whether clients may filter a stream further by ?filter=. For dashboards.",
    )
    fields: tuple[ShownField, ...] = Field(
        default=(),
        description="JSON pointers of the fields of a value that clients are shown, optionally "
        "only with certain roles; default all fields. For data protection.",
    )
    client_fields: Flag = Field(
        default=False,
        description="Whether clients may select fewer fields by ?fields=. For mobile clients.",
    )
    format: Annotated[str, Choice(lambda: EVENT_FORMATS)] = Field(
        default="value",
        description="What an event has as its data: the value, an envelope with key, headers and "
        "position, or a CloudEvent. For the code of clients.",
    )
    binary: Literal["error", "base64"] = Field(
        default="error",
        description="How a value is sent with `format: value`: `error` sends an error event "
        "instead of a value that is not UTF-8, `base64` sends every value as base64. For binary "
        "topics.",
    )
    heartbeat: Annotated[Duration, in_range(0.1, 600)] = Field(
        default=15.0,
        description="How often something is written to an idle stream, which must be more often "
        "than proxies close idle connections. For proxies in front.",
    )
    history: History = Field(
        default="all",
        description="How far back ?from= may go: none, all or a duration. For owners of large "
        "topics.",
    )
    slow_client: Literal["catchUp", "skip", "conflate", "disconnect"] = Field(
        default="catchUp",
        description="What a client gets that reads too slowly: all that it missed (catchUp), a gap "
        "(skip), the latest record of each key (conflate) or the end of its stream (disconnect). "
        "For mobile clients.",
    )
    mode: Literal["live", "snapshot"] = Field(
        default="live",
        description="live begins at the client's position; snapshot sends the latest record of "
        "each key first. For compacted topics.",
    )
    interval: Annotated[Duration, in_range(0.01, 60)] | None = Field(
        default=None,
        description="Send at most once in this time, and only the latest record of each key; "
        "default every record. For displays.",
    )
    compression: Literal["gzip", "none"] = Field(
        default="gzip",
        description="Compression for clients that accept it, once for all of them. Use none if "
        "secret records are sent together with ones that strangers write, because the length of "
        "the compressed data tells something about the secret. For clients on slow networks.",
    )
    max_rate: Rate | None = Field(
        default=None,
        description="The most records for each client in a time, such as 100/s; a client that "
        "falls behind by it gets what `slowClient` says. For displays, and for small devices.",
    )
    max_lifetime: Annotated[Duration, in_range(1, 30 * 86_400)] | None = Field(
        default=None,
        description="How long a stream may last before it is ended and the client resumes; default "
        "no limit. For load balancers that move clients to new replicas.",
    )

    produce: Flag = Field(
        default=False,
        description="Whether clients of the stream may write records, over WebSocket. For commands "
        "of clients.",
    )

    key: WriteTemplate | None = Field(
        default=None,
        description="Key of the records that are written, such as ${params.id} or "
        "${idempotencyKey}. For order, and for compacted topics.",
    )
    overrides: dict[Text, WriteTemplate] = Field(
        default={},
        description="Headers of the records that are written, which override those of the request. "
        "For services that must know the sender.",
    )
    acks: Literal["in_sync_replicas", "none"] | None = Field(
        default=None,
        description="When a request is answered: when the in-sync replicas have its record "
        "(default), or at once (none). For records that may be lost.",
    )
    reply_to: TopicName | None = Field(
        default=None,
        description="The topic of replies; a request is answered with the reply to its record. For "
        "services behind Kafka.",
    )
    correlation: Correlation | None = Field(
        default=None,
        description="Headers by which a request and its reply are matched; default those of Zilla. "
        "For services that reply.",
    )
    timeout: Annotated[Duration, in_range(0.1, 300)] | None = Field(
        default=None,
        description="How long to wait for a reply before the request is answered with 504; default "
        "30s. For slow services.",
    )
    async_: Async | None = Field(
        default=None,
        alias="async",
        description="Where a request with Prefer: respond-async can fetch its reply later; default "
        "such requests wait, too. For slow services.",
    )

    @property
    def topic_templates(self) -> tuple[Template, ...]:
        """The templates of `topic` or `topics`."""
        return (self.topic,) if self.topic is not None else self.topics

    @property
    def can_write(self) -> bool:
        """Whether clients may write records."""
        return self.produce or self.capability == "produce"

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield the problems between options: of topics, empty lists, snapshots and capability."""
        if "topic" in raw and "topics" in raw:
            yield Problem(("topics",), "'topics' excludes 'topic'; keep one of them", is_key=True)
        elif "topic" not in raw and "topics" not in raw:
            yield Problem((), "'topic' is missing; add topic or topics", is_key=True)
        elif raw.get("topics") in ([], ()):
            yield Problem(("topics",), "is empty; list at least one topic")
        for name, what in (("allow", "topic or pattern"), ("fields", "JSON pointer")):
            if raw.get(name) in ([], ()):
                yield Problem((name,), f"is empty; list at least one {what}, or leave it out")
        if raw.get("mode") == "snapshot" and raw.get("slowClient") == "skip":
            what = "skip leaves out what mode: snapshot promises, the latest record of each key"
            yield Problem(("slowClient",), f"{what}; use conflate")
        yield from check_with(raw)


class Route(Section):
    """Paths, what they do, and who may use them."""

    when: tuple[When, ...] = Field(
        description="The paths of the route. For clients.", json_schema_extra={"minItems": 1}
    )
    guarded: dict[Text, tuple[Text, ...]] = Field(
        default={},
        description="Guards, each with the roles that it must grant; all of them must admit the "
        "request. For access control.",
    )
    access_control: AccessControl | None = Field(
        default=None,
        alias="access-control",
        description="CORS of the route; default listen.access-control. For pages of other sites.",
    )
    with_: With = Field(
        alias="with", description="What the route does, and with which topics. For clients."
    )

    def get_method(self, when: When) -> str:
        """Return the HTTP method of one of the paths in `when`."""
        return when.method or ("POST" if self.with_.capability == "produce" else "GET")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield the problems of a route without paths, and of methods that do not fit."""
        if raw.get("when") in ([], ()):
            yield Problem(("when",), "is empty; list at least one path")
        yield from check_methods(raw)
