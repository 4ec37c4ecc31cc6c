"""What a WebSocket client may say: one JSON object a message, told apart by its `type`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from gateway.config.source.expression import find_closest
from gateway.errors import RequestError
from gateway.formats.exact_numbers import has_inexact_number

MAX_ID_CHARS = 64  # characters
MAX_SELECTION_BYTES = 64 * 1024  # of a filter, and of a list of fields, as JSON in UTF-8
SELECTION_MEMBERS = frozenset({"filter", "fields"})  # what a client chooses to see
MAX_CONTAINERS = 40_000  # arrays and objects of a message; of 350,000 in 1 MiB Python made 90 ms
_STRING_PATTERN = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

MessageId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]

# The first that is wrong of a list or an object ends it: pydantic makes an error of each, 0.9 s for
# the 500,000 that a message may hold.


def _validate_header_values(headers: dict[str, Any]) -> dict[str, str]:
    if not all(type(text) is str for text in headers.values()):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return headers


RecordHeaders: TypeAlias = Annotated[dict[str, Any], AfterValidator(_validate_header_values)]
FilterJson: TypeAlias = dict[str, Any] | Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class Message(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=False
    )


class Selection(Message):
    """What a stream is about; what is absent is as the path's query, or as it was, has it."""

    path: str | None = Field(None, min_length=1, max_length=16 * 1024)
    filter: FilterJson | None = None
    fields_: Annotated[list[str], Field(fail_fast=True)] | None = Field(None, alias="fields")


class SubscribeMessage(Selection):
    type: Literal["subscribe"]
    id: MessageId
    path: str = Field(min_length=1, max_length=16 * 1024)
    from_: str | None = Field(None, alias="from")
    until: str | int | None = None
    last_event_id: str | None = None
    credit: int | None = Field(None, ge=0, le=2**53)


class ChangeMessage(Selection):
    type: Literal["change"]
    id: MessageId | None = None


class UnsubscribeMessage(Message):
    type: Literal["unsubscribe"]
    id: MessageId


class CreditMessage(Message):
    type: Literal["credit"]
    id: MessageId | None = None
    n: int = Field(ge=1, le=2**53)


class ProduceMessage(Message):
    """id: of the message, for its answer; not of a subscription."""

    type: Literal["produce"]
    id: MessageId
    path: str | None = Field(None, min_length=1, max_length=16 * 1024)
    topic: str | None = None
    key: str | None = None
    value: Any
    headers: RecordHeaders = {}
    base64: bool = False
    idempotency_key: str | None = Field(None, min_length=1, max_length=255)


class TokenMessage(Message):
    type: Literal["token"]
    jwt: str = Field(min_length=1, max_length=64 * 1024)


class PingMessage(Message):
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
_ADAPTERS = {name: TypeAdapter(kind) for name, kind in MESSAGE_MODELS.items()}
_MEMBERS = {
    name: {field.alias or own: None for own, field in kind.model_fields.items()}
    for name, kind in MESSAGE_MODELS.items()
}


class BadMessageError(RequestError):
    """What came is no message. `about`: the id that it names, for the answer."""

    def __init__(self, title: str, detail: str, message_id: str | None = None) -> None:
        super().__init__(400, title, detail)
        self.message_id = message_id


def parse_message(text: str) -> ClientMessage:
    """One message. Raises BadMessage, which says what to write instead."""
    try:
        # orjson is strict (no NaN, no lone surrogates), but cuts long integers short.
        data = text.encode()
        if count_containers(data) > MAX_CONTAINERS:
            what = f"this has more than {MAX_CONTAINERS} arrays and objects; send the value as text"
            raise BadMessageError("Bad message", what)
        raw = orjson.loads(data)
        if has_inexact_number(data):
            raw = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise BadMessageError("Bad message", f"this is not JSON: {exc}; send one object") from None
    if not isinstance(raw, dict):
        raise BadMessageError("Bad message", "send a JSON object with a member 'type'")
    about = raw.get("id")
    if not isinstance(about, str) or len(about) > MAX_ID_CHARS:  # none that would be answered to
        about = None
    kind = raw.get("type")
    if not isinstance(kind, str) or kind not in MESSAGE_MODELS:
        raise BadMessageError(
            "Unknown type", _describe_unknown("type", kind, MESSAGE_MODELS), about
        )
    for name in raw:
        if name not in _MEMBERS[kind]:
            what = _describe_unknown(f"member of {kind}", name, _MEMBERS[kind])
            raise BadMessageError("Bad message", what, about)
    for name in SELECTION_MEMBERS & raw.keys():
        if _json_size(raw[name]) > MAX_SELECTION_BYTES:
            what = f"'{name}' has more than {MAX_SELECTION_BYTES} bytes; ask for less"
            raise BadMessageError("Bad message", f"{kind}: {what}", about)
    try:
        said: ClientMessage = _ADAPTERS[kind].validate_python(raw)  # type: ignore[assignment]
    except ValidationError as exc:
        raise BadMessageError("Bad message", _describe_error(kind, exc), about) from None
    return said


def _json_size(value: object) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:  # an integer of more than 64 bits
        return len(json.dumps(value, ensure_ascii=False).encode())


def count_containers(data: bytes) -> int:
    """Return how many arrays and objects a JSON text has, without reading it."""
    count = data.count(b"[") + data.count(b"{")
    if count > MAX_CONTAINERS:  # those in strings are none; to find them takes 3 ms for 1 MiB
        bare = _STRING_PATTERN.sub(b"", data)
        count = bare.count(b"[") + bare.count(b"{")
    return count


def _describe_error(message_type: str, exc: ValidationError) -> str:
    """The first of what is wrong, in our words where pydantic's help nobody."""
    error = exc.errors(include_url=False)[0]
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "missing":
        return f"{message_type} lacks '{name}'; add it"
    return f"{message_type}: '{name}' {error['msg'][0].lower()}{error['msg'][1:]}"


def _describe_unknown(noun: str, name: Any, candidates: Iterable[str]) -> str:
    if not isinstance(name, str):
        return f"{noun} is missing; one of {', '.join(candidates)}"
    near = find_closest(name, candidates)
    hint = f"did you mean '{near}'?" if near else f"one of {', '.join(candidates)}"
    return f"unknown {noun} '{name[:64]}'; {hint}"
