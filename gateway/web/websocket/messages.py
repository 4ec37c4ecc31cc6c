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

from gateway.config.source.expression import closest
from gateway.errors import RequestError
from gateway.formats.digits import has_long

LONGEST_ID = 64  # characters
MAX_CHOICE_BYTES = 64 * 1024  # of a filter, and of a list of fields, as JSON in UTF-8
CHOICES = frozenset({"filter", "fields"})  # what a client chooses to see
MAX_CONTAINERS = 40_000  # arrays and objects of a message; of 350,000 in 1 MiB Python made 90 ms
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]

# The first that is wrong of a list or an object ends it: pydantic makes an error of each, 0.9 s for
# the 500,000 that a message may hold.


def _texts(given: dict[str, Any]) -> dict[str, str]:
    if not all(type(text) is str for text in given.values()):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return given


Headers: TypeAlias = Annotated[dict[str, Any], AfterValidator(_texts)]
Filter: TypeAlias = dict[str, Any] | Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class Message(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=False
    )


class Choice(Message):
    """What a stream is about; what is absent is as the path's query, or as it was, has it."""

    path: str | None = Field(None, min_length=1, max_length=16 * 1024)
    filter: Filter | None = None
    fields_: Annotated[list[str], Field(fail_fast=True)] | None = Field(None, alias="fields")


class Subscribe(Choice):
    type: Literal["subscribe"]
    id: Id
    path: str = Field(min_length=1, max_length=16 * 1024)
    from_: str | None = Field(None, alias="from")
    until: str | int | None = None
    last_event_id: str | None = None
    credit: int | None = Field(None, ge=0, le=2**53)


class Change(Choice):
    type: Literal["change"]
    id: Id | None = None


class Unsubscribe(Message):
    type: Literal["unsubscribe"]
    id: Id


class Credit(Message):
    type: Literal["credit"]
    id: Id | None = None
    n: int = Field(ge=1, le=2**53)


class Produce(Message):
    """id: of the message, for its answer; not of a subscription."""

    type: Literal["produce"]
    id: Id
    path: str | None = Field(None, min_length=1, max_length=16 * 1024)
    topic: str | None = None
    key: str | None = None
    value: Any
    headers: Headers = {}
    base64: bool = False
    idempotency_key: str | None = Field(None, min_length=1, max_length=255)


class Token(Message):
    type: Literal["token"]
    jwt: str = Field(min_length=1, max_length=64 * 1024)


class Ping(Message):
    type: Literal["ping"]
    id: Id | None = None


Said: TypeAlias = Subscribe | Change | Unsubscribe | Credit | Produce | Token | Ping

KINDS: dict[str, type[Message]] = {
    "subscribe": Subscribe,
    "change": Change,
    "unsubscribe": Unsubscribe,
    "credit": Credit,
    "produce": Produce,
    "token": Token,
    "ping": Ping,
}
_ADAPTERS = {name: TypeAdapter(kind) for name, kind in KINDS.items()}
_MEMBERS = {
    name: {field.alias or own: None for own, field in kind.model_fields.items()}
    for name, kind in KINDS.items()
}


class BadMessage(RequestError):
    """What came is no message. `about`: the id that it names, for the answer."""

    def __init__(self, title: str, detail: str, about: str | None = None) -> None:
        super().__init__(400, title, detail)
        self.about = about


def read(text: str) -> Said:
    """One message. Raises BadMessage, which says what to write instead."""
    try:
        # orjson is strict (no NaN, no lone surrogates), but cuts long integers short.
        data = text.encode()
        if count_containers(data) > MAX_CONTAINERS:
            what = f"this has more than {MAX_CONTAINERS} arrays and objects; send the value as text"
            raise BadMessage("Bad message", what)
        raw = orjson.loads(data)
        if has_long(data):
            raw = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise BadMessage("Bad message", f"this is not JSON: {exc}; send one object") from None
    if not isinstance(raw, dict):
        raise BadMessage("Bad message", "send a JSON object with a member 'type'")
    about = raw.get("id")
    if not isinstance(about, str) or len(about) > LONGEST_ID:  # none that would be answered to
        about = None
    kind = raw.get("type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadMessage("Unknown type", _unknown("type", kind, KINDS), about)
    for name in raw:
        if name not in _MEMBERS[kind]:
            what = _unknown(f"member of {kind}", name, _MEMBERS[kind])
            raise BadMessage("Bad message", what, about)
    for name in CHOICES & raw.keys():
        if _json_bytes(raw[name]) > MAX_CHOICE_BYTES:
            what = f"'{name}' has more than {MAX_CHOICE_BYTES} bytes; ask for less"
            raise BadMessage("Bad message", f"{kind}: {what}", about)
    try:
        said: Said = _ADAPTERS[kind].validate_python(raw)  # type: ignore[assignment]
    except ValidationError as exc:
        raise BadMessage("Bad message", _told(kind, exc), about) from None
    return said


def _json_bytes(value: object) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:  # an integer of more than 64 bits
        return len(json.dumps(value, ensure_ascii=False).encode())


def count_containers(data: bytes) -> int:
    """Return how many arrays and objects a JSON text has, without reading it."""
    count = data.count(b"[") + data.count(b"{")
    if count > MAX_CONTAINERS:  # those in strings are none; to find them takes 3 ms for 1 MiB
        bare = _STRINGS.sub(b"", data)
        count = bare.count(b"[") + bare.count(b"{")
    return count


def _told(kind: str, exc: ValidationError) -> str:
    """The first of what is wrong, in our words where pydantic's help nobody."""
    error = exc.errors(include_url=False)[0]
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "missing":
        return f"{kind} lacks '{name}'; add it"
    return f"{kind}: '{name}' {error['msg'][0].lower()}{error['msg'][1:]}"


def _unknown(what: str, name: Any, known: Iterable[str]) -> str:
    if not isinstance(name, str):
        return f"{what} is missing; one of {', '.join(known)}"
    near = closest(name, known)
    hint = f"did you mean '{near}'?" if near else f"one of {', '.join(known)}"
    return f"unknown {what} '{name[:64]}'; {hint}"
