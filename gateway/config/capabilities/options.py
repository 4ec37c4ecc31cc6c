"""Define the common options of all capabilities of routes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainSerializer, PlainValidator, SerializationInfo, TypeAdapter

from gateway.config.types.condition import Filter, RequestTemplate
from gateway.config.types.fields import Choice, Flag, Pointer, Text, TopicGlob
from gateway.config.types.formats import EVENT_FORMATS
from gateway.config.types.forms import Guarded
from gateway.config.types.section import Problem, Section
from gateway.config.types.template import Template

WRITE_METHODS = ("POST", "PUT", "PATCH", "DELETE")


class Shown(Section):
    """A field that only clients with certain roles are shown."""

    field: Pointer = Field(description="JSON pointer of the field.")
    guarded: Guarded = Field(
        description="Guards of the route, each with the roles that it must grant; all must.",
        json_schema_extra={"minProperties": 1},
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
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


def _serialize_shown_field(value: str | Shown, info: SerializationInfo) -> Any:
    if isinstance(value, str):
        return value
    return value.model_dump(mode=info.mode, by_alias=bool(info.by_alias))


ShownField = Annotated[
    str | Shown,
    PlainValidator(_validate_shown_field, json_schema_input_type=Pointer | Shown),
    PlainSerializer(_serialize_shown_field, return_type=Any),
]


class With(Section):
    """The options of a route: its topics, and the records and fields that it shows.

    Each capability is a subclass, and listed in `WITH_KINDS`.
    """

    methods: ClassVar[tuple[str, ...]] = ("GET",)
    """The HTTP methods that a path may have; the first is the default."""

    capability: str
    topic: RequestTemplate | None = Field(default=None, description="The topic to read or write.")
    kafka: Text | None = Field(
        default=None,
        description="Name of the Kafka cluster; default the one that lists the topics.",
    )
    allow: tuple[TopicGlob, ...] = Field(
        default=(),
        description="Topics or patterns that clients may choose in the path; default those of "
        "kafka.topics.",
    )
    filters: tuple[Filter, ...] = Field(
        default=(), description="A record is sent if any of these matches; default all."
    )
    client_filters: Flag = Field(
        default=False, description="Whether clients may filter further by `?filter=`."
    )
    fields: tuple[ShownField, ...] = Field(
        default=(),
        description="JSON pointers of the fields to show, optionally by role; default all.",
    )
    client_fields: Flag = Field(
        default=False, description="Whether clients may select fewer fields by `?fields=`."
    )
    format: Annotated[str, Choice(lambda: EVENT_FORMATS)] = Field(
        default="value",
        description="The data of an event: the value, an envelope with key, headers and "
        "position, or a CloudEvent.",
    )
    binary: Literal["error", "base64"] = Field(
        default="error",
        description="With `format: value`: an error event for a value that is not UTF-8, or "
        "every value as base64.",
    )

    @classmethod
    def describe_unknown_key(cls, key: str) -> str | None:
        if key in ("guarded", "access-control", "accessControl", "when", "path"):
            return f"'{key}' belongs beside `with`, not in it; move it there"
        return None

    @property
    def topic_templates(self) -> tuple[Template, ...]:
        return () if self.topic is None else (self.topic,)

    @property
    def can_write(self) -> bool:
        return False

    @property
    def can_read(self) -> bool:
        return True

    @property
    def reply_topic(self) -> str | None:
        """The topic of replies to requests; None if they have none."""
        return None

    @property
    def reply_location(self) -> Template | None:
        """The path where a client asks for a reply later; None if it cannot."""
        return None

    @classmethod
    def check_method(cls, method: str, raw: Mapping[Any, Any]) -> str | None:
        """Return the problem of a path's method; None if there is none."""
        if method in WRITE_METHODS and method not in cls.methods:
            return f"method {method} is for capability: produce; use GET, or remove it"
        return None

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "topic" not in raw:
            yield Problem((), "'topic' is missing; add it", is_key=True)
        yield from cls.check_lists(raw)

    @classmethod
    def check_lists(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        for name, what in (("allow", "topic or pattern"), ("fields", "JSON pointer")):
            if raw.get(name) in ([], ()):
                yield Problem((name,), f"is empty; list at least one {what}, or leave it out")
