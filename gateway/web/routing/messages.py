"""Parse the messages of a WebSocket client: one JSON object each, distinguished by its `type`.

`build_target` and `build_request` make the HTTP request that would ask for the same stream.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import parse_qsl, urlencode

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError
from starlette.requests import HTTPConnection

from gateway.config.types.substitution import find_closest
from gateway.errors import RequestError
from gateway.formats.exact_values import has_inexact_number
from gateway.web.http.head import build_bad_request, check_query

MAX_ID_CHARS = 64
MAX_SELECTION_BYTES = 64 * 1024  # of a filter, or of a list of fields, as JSON in UTF-8
SELECTION_MEMBERS = frozenset({"filter", "fields"})
# Arrays and objects of a message. To build the 350,000 that fit into 1 MiB took 90 ms.
MAX_CONTAINERS = 40_000
_STRING_PATTERN = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

MessageId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]

# The members of lists and objects below are checked until the first one that is wrong. pydantic
# would create an error for each, which takes 0.9 s for the 500,000 that a message may hold.


def _validate_header_values(headers: dict[str, Any]) -> dict[str, str]:
    if not all(type(text) is str for text in headers.values()):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return headers


RecordHeaders: TypeAlias = Annotated[dict[str, Any], AfterValidator(_validate_header_values)]
FilterJson: TypeAlias = dict[str, Any] | Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class Message(BaseModel):
    """A message of a client. Values are not converted, and unknown members are refused."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=False
    )


class Selection(Message):
    """What a stream is to show.

    A member that is absent does not override the query of the path or, in a `change`, what the
    stream shows so far.
    """

    path: str | None = Field(None, min_length=1, max_length=16 * 1024)
    filter: FilterJson | None = None
    fields_: Annotated[list[str], Field(fail_fast=True)] | None = Field(None, alias="fields")


class SubscribeMessage(Selection):
    """`subscribe`: open a stream under an id that the client chooses."""

    type: Literal["subscribe"]
    id: MessageId
    path: str = Field(min_length=1, max_length=16 * 1024)
    from_: str | None = Field(None, alias="from")
    until: str | int | None = None
    last_event_id: str | None = None
    credit: int | None = Field(None, ge=0, le=2**53)


class ChangeMessage(Selection):
    """`change`: show something else on a stream, from its present position."""

    type: Literal["change"]
    id: MessageId | None = None


class UnsubscribeMessage(Message):
    """`unsubscribe`: end a stream."""

    type: Literal["unsubscribe"]
    id: MessageId


class CreditMessage(Message):
    """`credit`: allow a stream to send `n` more records."""

    type: Literal["credit"]
    id: MessageId | None = None
    n: int = Field(ge=1, le=2**53)


class ProduceMessage(Message):
    """`produce`: write a record. Its `id` names the message in the reply, not a subscription."""

    type: Literal["produce"]
    id: MessageId
    path: str | None = Field(None, min_length=1, max_length=16 * 1024)
    topic: str | None = None
    key: str | None = None
    value: Any
    headers: RecordHeaders = {}
    base64: bool = False
    idempotency_key: str | None = Field(None, min_length=1, max_length=255)

    @cached_property
    def content(self) -> tuple[bytes | None, bytes | None]:
        """The key and value of the record. A value that is no string is written as JSON."""
        if self.base64:
            return _decode_base64("key", self.key), _decode_base64("value", self.value)
        key = None if self.key is None else self.key.encode()
        if self.value is None:
            return key, None
        if isinstance(self.value, str):
            return key, self.value.encode()
        try:
            text = json.dumps(self.value, ensure_ascii=False, separators=(",", ":"))
        except RecursionError:
            raise build_bad_request("'value' is nested too deep; flatten it") from None
        return key, text.encode()


class TokenMessage(Message):
    """`token`: renew the bearer token of the socket."""

    type: Literal["token"]
    jwt: str = Field(min_length=1, max_length=64 * 1024)


class PingMessage(Message):
    """`ping`: ask for a `pong`, as browsers cannot send ping frames."""

    type: Literal["ping"]
    id: MessageId | None = None


ClientMessage: TypeAlias = (
    SubscribeMessage
    | ChangeMessage
    | UnsubscribeMessage
    | CreditMessage
    | ProduceMessage
    | TokenMessage
    | PingMessage
)

MESSAGE_MODELS: dict[str, type[Message]] = {
    "subscribe": SubscribeMessage,
    "change": ChangeMessage,
    "unsubscribe": UnsubscribeMessage,
    "credit": CreditMessage,
    "produce": ProduceMessage,
    "token": TokenMessage,
    "ping": PingMessage,
}
_ADAPTERS = {name: TypeAdapter(model) for name, model in MESSAGE_MODELS.items()}
# The names of each message's members, in order, as JSON has them.
_MEMBERS = {
    name: {field.alias or field_name: None for field_name, field in model.model_fields.items()}
    for name, model in MESSAGE_MODELS.items()
}


class BadMessageError(RequestError):
    """A message is malformed, or asks for something that cannot be.

    `message_id` is the `id` for the reply; None if the message has none that can be used.
    """

    def __init__(self, title: str, detail: str, message_id: str | None = None) -> None:
        super().__init__(400, title, detail)
        self.message_id = message_id


def parse_message(text: str) -> ClientMessage:
    """Parse one message; the detail of a `BadMessageError` says what to send instead."""
    raw = _parse_object(text)
    message_id = raw.get("id")
    # An id that is not valid is not repeated in the reply.
    if not isinstance(message_id, str) or len(message_id) > MAX_ID_CHARS:
        message_id = None
    message_type = raw.get("type")
    if not isinstance(message_type, str) or message_type not in MESSAGE_MODELS:
        raise BadMessageError(
            "Unknown type", _describe_unknown("type", message_type, MESSAGE_MODELS), message_id
        )
    for name in raw:
        if name not in _MEMBERS[message_type]:
            detail = _describe_unknown(f"member of {message_type}", name, _MEMBERS[message_type])
            raise BadMessageError("Bad message", detail, message_id)
    for name in SELECTION_MEMBERS & raw.keys():
        if _json_size(raw[name]) > MAX_SELECTION_BYTES:
            detail = f"'{name}' has more than {MAX_SELECTION_BYTES} bytes; ask for less"
            raise BadMessageError("Bad message", f"{message_type}: {detail}", message_id)
    try:
        message: ClientMessage = _ADAPTERS[message_type].validate_python(raw)  # type: ignore[assignment]
    except ValidationError as exc:
        detail = _describe_error(message_type, exc)
        raise BadMessageError("Bad message", detail, message_id) from None
    return message


def _parse_object(text: str) -> dict[str, Any]:
    """Parse the JSON object of a message, which must not have too many arrays and objects."""
    try:
        # orjson is strict (no NaN, no lone surrogates), but does not keep numbers such as integers
        # of more than 64 bits. The standard library parses messages with such numbers again.
        data = text.encode()
        if count_containers(data) > MAX_CONTAINERS:
            detail = (
                f"this has more than {MAX_CONTAINERS} arrays and objects; send the value as text"
            )
            raise BadMessageError("Bad message", detail)
        raw = orjson.loads(data)
        if has_inexact_number(data, raw):
            raw = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise BadMessageError("Bad message", f"this is not JSON: {exc}; send one object") from None
    if not isinstance(raw, dict):
        raise BadMessageError("Bad message", "send a JSON object with a member 'type'")
    return raw


def _decode_base64(name: str, text: Any) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise build_bad_request(f"'{name}' is not base64 text") from None


def _json_size(value: object) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:  # an integer of more than 64 bits
        return len(json.dumps(value, ensure_ascii=False).encode())


def count_containers(data: bytes) -> int:
    """Return how many arrays and objects a JSON text has, without parsing it.

    A result of up to `MAX_CONTAINERS` may be too large, as brackets in strings count.
    """
    count = data.count(b"[") + data.count(b"{")
    if count > MAX_CONTAINERS:  # count again without strings, which takes 3 ms for 1 MiB
        bare = _STRING_PATTERN.sub(b"", data)
        count = bare.count(b"[") + bare.count(b"{")
    return count


def _describe_error(message_type: str, exc: ValidationError) -> str:
    """Return the first error of a message, in our words where pydantic's do not help."""
    error = exc.errors(include_url=False)[0]
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "missing":
        return f"{message_type} has no '{name}'; add it"
    return f"{message_type}: '{name}' {error['msg'][0].lower()}{error['msg'][1:]}"


def _describe_unknown(noun: str, name: Any, candidates: Iterable[str]) -> str:
    if not isinstance(name, str):
        return f"{noun} is missing; one of {', '.join(candidates)}"
    near = find_closest(name, candidates)
    hint = f"did you mean '{near}'?" if near else f"one of {', '.join(candidates)}"
    return f"unknown {noun} '{name[:64]}'; {hint}"


QueryPairs: TypeAlias = Sequence[tuple[str, str]]
"""The decoded parameters of a query. A name may occur again: filters are combined by AND."""


def build_target(message: SubscribeMessage) -> tuple[str, QueryPairs]:
    """Return the path and query of a subscription.

    Members of the message override the query of its path.
    """
    path, query = parse_target(message.path)
    members = {
        "from": message.from_,
        "until": None if message.until is None else str(message.until),
        "lastEventId": message.last_event_id,
        "credit": None if message.credit is None else str(message.credit),
    }
    overrides = {name: text for name, text in members.items() if text}
    return path, merge_query(query, overrides | build_selection_query(message))


def merge_query(query: Iterable[tuple[str, str]], overrides: Mapping[str, str]) -> QueryPairs:
    """Return a query in which each override replaces all parameters of its name."""
    return [pair for pair in query if pair[0] not in overrides] + list(overrides.items())


def build_selection_query(selection: Selection) -> dict[str, str]:
    """Return the selection of a message as query parameters.

    A member that the message does not have is left out. One that is null or empty becomes an empty
    parameter, which selects everything.
    """
    query: dict[str, str] = {}
    # Not by orjson, which cannot write integers of more than 64 bits.
    if "filter" in selection.model_fields_set:
        query["filter"] = "" if selection.filter is None else _dump_filter(selection.filter)
    if "fields_" in selection.model_fields_set:
        query["fields"] = json.dumps(selection.fields_) if selection.fields_ else ""
    return query


def _dump_filter(filter: FilterJson) -> str:
    try:
        return json.dumps(filter)
    except RecursionError:
        raise RequestError(400, "Bad request", "'filter' is nested too deep; flatten it") from None


def parse_target(path: str) -> tuple[str, QueryPairs]:
    """Return the path, percent-encoded as it came, and the query of a request target."""
    check_query(path.encode())
    path, _, query = path.partition("?")
    return path, parse_qsl(query, keep_blank_values=True)


def build_request(path: str, query: QueryPairs, address: str = "") -> HTTPConnection:
    scope = {"type": "http", "path": path, "query_string": urlencode(query).encode()}
    return HTTPConnection(scope | {"headers": [], "client": (address, 0)})
