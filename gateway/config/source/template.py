"""Texts with holes that a request or a record fills.

`${params.customer}` is a parameter of the route's path, `${query.x}` of the request's
query, `${guarded['jwt0'].identity}` and `${guarded['jwt0'].attributes.a}` come from a
guard, `${message.key}` and `${message.value.a.b}` from a record (transforms only), and
`${idempotencyKey}` and `${correlationId}` from a request that writes one.
Filled in once, left to right: what a client sends is text, never a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from gateway.config.types.section import refused
from gateway.errors import RequestError

from .expression import Expression, nearest, show
from .substitution import parts_of, shown

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_FORMS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("params", re.compile(rf"params\.({_NAME})"), "${params.name}"),
    ("query", re.compile(rf"query\.({_NAME})"), "${query.name}"),
    (
        "guarded",
        re.compile(rf"guarded\['([^']+)'\]\.(?:identity|attributes\.({_NAME}))"),
        "${guarded['guard'].identity} or ${guarded['guard'].attributes.name}",
    ),
    (
        "message",
        re.compile(rf"message\.(key|value)((?:\.{_NAME})*)"),
        "${message.key} or ${message.value.field}",
    ),
    ("idempotencyKey", re.compile("(idempotencyKey)"), "${idempotencyKey}"),
    ("correlationId", re.compile("(correlationId)"), "${correlationId}"),
)
REQUEST = frozenset({"params", "query", "guarded"})
MESSAGE = frozenset({"message"})
WRITTEN = REQUEST | {"idempotencyKey"}
LOCATION = frozenset({"params", "correlationId"})
_WORDS = {"idempotencyKey": "header Idempotency-Key", "correlationId": "correlation id"}


class Hole(NamedTuple):
    """One `${...}` of a template.

    root: params, query, guarded, message, or a word by itself, which is its name, too.
    name: of the parameter, of the guard, or key or value. detail: the attribute, or the
    dotted field; empty for none.
    """

    root: str
    name: str
    detail: str
    text: str


Piece: TypeAlias = str | Hole
_Empty: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed text; `str()` gives it back as it would be written."""

    pieces: tuple[Piece, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Raises ValueError saying what to write."""
        return cls(tuple(part if isinstance(part, str) else _hole(part) for part in parts_of(text)))

    def __str__(self) -> str:
        return show(
            piece if isinstance(piece, str) else Expression(piece.text) for piece in self.pieces
        )

    @property
    def holes(self) -> tuple[Hole, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Hole))

    @property
    def literal(self) -> str | None:
        """The whole text, when there is nothing to fill in."""
        return None if self.holes else "".join(str(piece) for piece in self.pieces)

    def may_be(self, text: str) -> bool:
        """Some filling of the holes, none of them empty, gives this text."""
        pattern = "".join(
            re.escape(piece) if isinstance(piece, str) else ".+" for piece in self.pieces
        )
        return re.fullmatch(pattern, text, re.DOTALL) is not None

    def render(
        self,
        *,
        params: Mapping[str, str] = _Empty,
        query: Mapping[str, str] = _Empty,
        identity: Mapping[str, str] = _Empty,
        attributes: Mapping[str, Mapping[str, str]] = _Empty,
        words: Mapping[str, str] = _Empty,
    ) -> str:
        """The text for one request. `identity` and `attributes` are by guard; `words` are what
        stands by itself, such as `idempotencyKey`.

        Raises RequestError: 400 for a missing parameter, 403 for a missing claim.
        """

        def fill(hole: Hole) -> str:
            if hole.root == "params":
                return _found(params, hole.name, 400, f"path parameter '{hole.name}'")
            if hole.root == "query":
                return _found(query, hole.name, 400, f"query parameter '{hole.name}'")
            if hole.root in _WORDS:
                return _found(words, hole.name, 400, _WORDS[hole.root])
            if not hole.detail:
                return _claimed(identity, hole.name, f"identity of guard '{hole.name}'")
            claims = attributes.get(hole.name, _Empty)
            return _claimed(claims, hole.detail, f"attribute '{hole.detail}' of the token")

        return self._filled(fill)

    def extract(self, key: Any, value: Any) -> str | None:
        """The text for one record, from its decoded key and value; None where a field lacks."""
        filled = [
            piece if isinstance(piece, str) else _field(piece, key, value) for piece in self.pieces
        ]
        texts = [text for text in filled if text is not None]
        return "".join(texts) if len(texts) == len(filled) else None

    def _filled(self, fill: Callable[[Hole], str]) -> str:
        return "".join(piece if isinstance(piece, str) else fill(piece) for piece in self.pieces)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string"}

    @classmethod
    def validate(cls, value: object) -> Template:
        """A text of the file as a template, or what pydantic is told instead."""
        if isinstance(value, Template):
            return value
        if not isinstance(value, str):
            raise refused(f"expects text, not {shown(value)}; put it in quotes")
        if not value:
            raise refused("is empty; give it a text or remove it")
        try:
            return cls.parse(value)
        except ValueError as error:
            raise refused(str(error)) from None


def _hole(expression: Expression) -> Hole:
    for root, form, example in _FORMS:
        if root == expression.root:
            match = form.fullmatch(expression.text)
            if match is None:
                raise ValueError(f"'{expression}' is malformed; write {example}")
            name, *detail = match.groups()
            return Hole(
                root, name, (detail[0] or "").lstrip(".") if detail else "", expression.text
            )
    _unknown(expression)


def only(template: Template, roots: Container[str], instead: str) -> Template:
    """One whose holes are filled from these alone; instead: what to use. Raises for any other."""
    for hole in template.holes:
        if hole.root not in roots:
            raise refused(f"'${{{hole.text}}}' is unknown here; use {instead}")
    return template


def _unknown(expression: Expression) -> NoReturn:
    roots = [root for root, _, _ in _FORMS]
    raise ValueError(f"'{expression}' is unknown here; {nearest(expression.root, roots)}")


def _found(values: Mapping[str, str], name: str, status: int, what: str) -> str:
    try:
        return values[name]
    except KeyError:
        title = "Forbidden" if status == 403 else "Bad Request"
        raise RequestError(status, title, f"the {what} is missing; this route needs it") from None


def _claimed(values: Mapping[str, str], name: str, what: str) -> str:
    """An empty claim is none: it would be everybody's who has it empty."""
    found = _found(values, name, 403, what)
    if not found:
        raise RequestError(403, "Forbidden", f"the {what} is empty; this route needs it")
    return found


def _field(hole: Hole, key: Any, value: Any) -> str | None:
    found = key if hole.name == "key" else value
    for step in hole.detail.split(".") if hole.detail else ():
        found = found.get(step) if isinstance(found, Mapping) else None
    if found is None or isinstance(found, (Mapping, list)):
        return None
    if isinstance(found, bool):
        return "true" if found else "false"
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
