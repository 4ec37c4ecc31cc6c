"""Which path answers with which records, to whom, and how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter

from gateway.config.source.template import Template
from gateway.config.types.condition import Filter, RequestTemplate
from gateway.config.types.fields import (
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
from gateway.config.types.path import PathPattern
from gateway.config.types.section import Problem, Section, create_value_error

from .listen import AccessControl
from .produce import Async, Correlation, WriteTemplate, check_methods, check_with


def _validate_path(value: object) -> str:
    given = validate_text(value)
    try:
        PathPattern.parse(given)
    except ValueError as error:
        raise create_value_error(str(error)) from None
    return given


RoutePath = Annotated[str, BeforeValidator(_validate_path)]


class When(Section):
    path: RoutePath = Field(
        description="Such as /events/{customer}; `*` at the end for the rest. For clients."
    )
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | None = Field(
        default=None,
        description="The HTTP method; default GET, with capability: produce POST. For clients.",
    )

    @property
    def pattern(self) -> PathPattern:
        return PathPattern.parse(self.path)


class Shown(Section):
    """A field that not everybody is shown."""

    field: Pointer = Field(description="Its JSON pointer. For data protection.")
    guarded: dict[Text, tuple[Text, ...]] = Field(
        description="Guards of the route and the roles they must grant, all of them. For masking "
        "by role.",
        json_schema_extra={"minProperties": 1},
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if raw.get("guarded") == {}:
            yield Problem(("guarded",), "is empty; name a guard, or write the pointer alone")


_POINTER_ADAPTER = TypeAdapter(Pointer)


def _validate_shown_field(value: object) -> str | Shown:
    """Told apart here: a union would tell what is wrong as seen by each of its members."""
    if isinstance(value, (Shown, Mapping)):
        return Shown.model_validate(value)
    return _POINTER_ADAPTER.validate_python(value)


ShownField = Annotated[
    str | Shown, PlainValidator(_validate_shown_field, json_schema_input_type=Pointer | Shown)
]


class With(Section):
    capability: Literal["stream", "fetch", "produce"] = Field(
        default="stream",
        description="What a request gets: a stream; fetch: the latest record of a key, as a "
        "document; produce: its body is written as a record. For clients.",
    )
    topic: RequestTemplate | None = Field(
        default=None, description="The topic to read, or to write to. For clients."
    )
    topics: tuple[RequestTemplate, ...] = Field(
        default=(), description="Several topics, merged. For clients; instead of topic."
    )
    kafka: Text | None = Field(
        default=None,
        description="The cluster to read, of several; default the one that lists the topics. For "
        "topics that more than one has.",
    )
    allow: tuple[TopicGlob, ...] = Field(
        default=(),
        description="Topics that a path may choose, also as a list or pattern; default those of "
        "kafka.topics. For dashboards.",
    )
    filters: tuple[Filter, ...] = Field(
        default=(),
        description="A record passes if any of them matches; all pass if empty. For clients.",
    )
    client_filters: Flag = Field(
        default=False, description="Whether ?filter= may narrow a stream. For dashboards."
    )
    fields: tuple[ShownField, ...] = Field(
        default=(),
        description="What is shown of a JSON value, by pointers, and to whom; default all. For "
        "data protection.",
    )
    client_fields: Flag = Field(
        default=False, description="Whether ?fields= may ask for less of it. For mobile clients."
    )
    format: Literal["value", "envelope", "cloudevents"] = Field(
        default="value", description="What `data:` holds. For the clients' code."
    )
    binary: Literal["error", "base64"] = Field(
        default="error", description="Values that are no UTF-8, in format value. For binary topics."
    )
    heartbeat: Annotated[Duration, in_range(0.1, 600)] = Field(
        default=15.0,
        description="How often an idle stream is written to. For proxies that cut idle ones.",
    )
    history: History = Field(
        default="all", description="How far back ?from= may go. For owners of large topics."
    )
    slow_client: Literal["catchUp", "skip", "conflate", "disconnect"] = Field(
        default="catchUp",
        description="What a client gets that reads too slowly. For mobile clients.",
    )
    mode: Literal["live", "snapshot"] = Field(
        default="live",
        description="What comes first: snapshot is the latest record of each key, then live. For "
        "compacted topics.",
    )
    interval: Annotated[Duration, in_range(0.01, 60)] | None = Field(
        default=None,
        description="At most the latest record of each key in so much time; default every record. "
        "For displays.",
    )
    compression: Literal["gzip", "none"] = Field(
        default="gzip",
        description="What clients get that accept it, compressed once for all; none for records "
        "that are secret beside ones a stranger writes. For clients on slow lines.",
    )
    max_rate: Rate | None = Field(
        default=None,
        description="At most so many records in any such time, for each client, such as 100/s; "
        "what is beyond is as slowClient says. For displays, and for small devices.",
    )
    max_lifetime: Annotated[Duration, in_range(1, 30 * 86_400)] | None = Field(
        default=None, description="When a stream is ended and reconnects. For load balancers."
    )

    produce: Flag = Field(
        default=False,
        description="Whether clients may write records, over WebSocket. For their commands.",
    )

    key: WriteTemplate | None = Field(
        default=None,
        description="The key of what is written, such as ${params.id} or ${idempotencyKey}. For "
        "order, and for compacted topics.",
    )
    overrides: dict[Text, WriteTemplate] = Field(
        default={},
        description="Headers of what is written, over those of the request. For services that must "
        "know who asked.",
    )
    acks: Literal["in_sync_replicas", "none"] | None = Field(
        default=None,
        description="When a request is answered: when the replicas in sync have its record "
        "(default), or none, at once. For what may be lost.",
    )
    reply_to: TopicName | None = Field(
        default=None,
        description="The topic of replies; a request is answered with its own. For services behind "
        "Kafka.",
    )
    correlation: Correlation | None = Field(
        default=None, description="How a reply is found. For services that answer."
    )
    timeout: Annotated[Duration, in_range(0.1, 300)] | None = Field(
        default=None,
        description="How long a reply is waited for, before 504; default 30s. For slow services.",
    )
    async_: Async | None = Field(
        default=None,
        alias="async",
        description="What Prefer: respond-async is answered with. For slow services.",
    )

    @property
    def topic_templates(self) -> tuple[Template, ...]:
        """The topics, however they were written."""
        return (self.topic,) if self.topic is not None else self.topics

    @property
    def can_write(self) -> bool:
        """Whether clients may write records."""
        return self.produce or self.capability == "produce"

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
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
    when: tuple[When, ...] = Field(
        description="Any of these paths. For clients.", json_schema_extra={"minItems": 1}
    )
    guarded: dict[Text, tuple[Text, ...]] = Field(
        default={},
        description="Guards and the roles they must grant, all of them. For access control.",
    )
    access_control: AccessControl | None = Field(
        default=None,
        alias="access-control",
        description="CORS of these paths; default that of listen. For pages of other sites.",
    )
    with_: With = Field(
        alias="with", description="What is streamed, shown or written. For clients."
    )

    def get_method(self, when: When) -> str:
        """The HTTP method of one of its paths."""
        return when.method or ("POST" if self.with_.capability == "produce" else "GET")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if raw.get("when") in ([], ()):
            yield Problem(("when",), "is empty; list at least one path")
        yield from check_methods(raw)
