"""Define texts with placeholders that a request or a record fills.

`${params.customer}` is a parameter of the route's path, `${query.x}` of the request's query,
`${guarded['jwt0'].identity}` and `${guarded['jwt0'].attributes.a}` come from a guard,
`${message.key}` and `${message.value.a.b}` from a record (transforms only), and `${idempotencyKey}`
and `${correlationId}` from a request that writes a record. Placeholders are filled once, from left
to right: data of clients is text, never a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from gateway.errors import RequestError

from .section import create_value_error
from .substitution import Expression, describe_not_text, format_parts, parse_parts, suggest

_NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_-]*"
_PLACEHOLDER_FORMS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("params", re.compile(rf"params\.({_NAME_PATTERN})"), "${params.name}"),
    ("query", re.compile(rf"query\.({_NAME_PATTERN})"), "${query.name}"),
    (
        "guarded",
        re.compile(
            rf"guarded\['([^']+)'\]\.(?:identity|attributes\.({_NAME_PATTERN}(?:\.{_NAME_PATTERN})*))"
        ),
        "${guarded['guard'].identity} or ${guarded['guard'].attributes.name}",
    ),
    (
        "message",
        re.compile(rf"message\.(key|value)((?:\.{_NAME_PATTERN})*)"),
        "${message.key} or ${message.value.field}",
    ),
    ("idempotencyKey", re.compile("(idempotencyKey)"), "${idempotencyKey}"),
    ("correlationId", re.compile("(correlationId)"), "${correlationId}"),
)
REQUEST_ROOTS = frozenset({"params", "query", "guarded"})
MESSAGE_ROOTS = frozenset({"message"})
WRITE_ROOTS = REQUEST_ROOTS | {"idempotencyKey"}
LOCATION_ROOTS = frozenset({"params", "correlationId"})
_WORD_DESCRIPTIONS = {"idempotencyKey": "header Idempotency-Key", "correlationId": "correlation id"}


class Placeholder(NamedTuple):
    """One `${...}` of a template.

    Attributes:
        root: `params`, `query`, `guarded`, `message`, or a single word such as `idempotencyKey`.
        name: The name of the parameter or of the guard, `key` or `value`, or the single word.
        detail: The attribute of the guard or the dotted field of the record; empty for none.
    """

    root: str
    name: str
    detail: str
    text: str


TemplatePart: TypeAlias = str | Placeholder
_EMPTY: Mapping[str, Any] = {}


def find_field(value: Any, path: str) -> Any:
    """Return the value at a path of names with dots; None if it is missing.

    Names may have dots themselves: at each level the longest one that exists is taken.
    """
    while path:
        if not isinstance(value, Mapping):
            return None
        name = path
        while name not in value:
            name = name.rpartition(".")[0]
            if not name:
                return None
        value, path = value[name], path[len(name) + 1 :]
    return value


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed text; `str()` returns it as it would be written."""

    parts: tuple[TemplatePart, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse a text; raise ValueError saying what to write if an expression is malformed."""
        return cls(
            tuple(
                part if isinstance(part, str) else _parse_placeholder(part)
                for part in parse_parts(text)
            )
        )

    def __str__(self) -> str:
        return format_parts(
            piece if isinstance(piece, str) else Expression(piece.text) for piece in self.parts
        )

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        return tuple(piece for piece in self.parts if isinstance(piece, Placeholder))

    @property
    def literal(self) -> str | None:
        """The whole text if there is no placeholder, else None."""
        return None if self.placeholders else "".join(str(piece) for piece in self.parts)

    def can_render(self, text: str) -> bool:
        """Return whether some non-empty values of the placeholders give this text."""
        pattern = "".join(
            re.escape(piece) if isinstance(piece, str) else ".+" for piece in self.parts
        )
        return re.fullmatch(pattern, text, re.DOTALL) is not None

    def render(
        self,
        *,
        params: Mapping[str, str] = _EMPTY,
        query: Mapping[str, str] = _EMPTY,
        identity: Mapping[str, str] = _EMPTY,
        attributes: Mapping[str, Mapping[str, str]] = _EMPTY,
        problems: Mapping[str, Mapping[str, str]] = _EMPTY,
        words: Mapping[str, str] = _EMPTY,
    ) -> str:
        """Return the text for one request.

        Args:
            identity: The client's identity, by guard.
            problems: Why the client has no such attribute, by guard and attribute.

        Raises:
            RequestError: 400 if a parameter is missing, 403 if a claim is missing or empty.
        """

        def fill(placeholder: Placeholder) -> str:
            if placeholder.root == "params":
                return _get_value(
                    params, placeholder.name, 400, f"path parameter '{placeholder.name}'"
                )
            if placeholder.root == "query":
                return _get_value(
                    query, placeholder.name, 400, f"query parameter '{placeholder.name}'"
                )
            if placeholder.root in _WORD_DESCRIPTIONS:
                return _get_value(
                    words, placeholder.name, 400, _WORD_DESCRIPTIONS[placeholder.root]
                )
            if not placeholder.detail:
                return _get_claim(
                    identity, placeholder.name, f"identity of guard '{placeholder.name}'"
                )
            name, attribute = placeholder.name, placeholder.detail
            problem = problems.get(name, _EMPTY).get(attribute)
            description = f"attribute '{attribute}' of guard '{name}'"
            return _get_claim(attributes.get(name, _EMPTY), attribute, description, problem)

        return self._fill(fill)

    def extract(self, key: Any, value: Any) -> str | None:
        """Return the text for one record, None if a field is missing."""
        filled = [
            piece if isinstance(piece, str) else _get_field(piece, key, value)
            for piece in self.parts
        ]
        texts = [text for text in filled if text is not None]
        return "".join(texts) if len(texts) == len(filled) else None

    def _fill(self, fill: Callable[[Placeholder], str]) -> str:
        return "".join(piece if isinstance(piece, str) else fill(piece) for piece in self.parts)

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
        if isinstance(value, Template):
            return value
        if not isinstance(value, str):
            raise create_value_error(describe_not_text(value))
        if not value:
            raise create_value_error("is empty; give it a text or remove it")
        try:
            return cls.parse(value)
        except ValueError as error:
            raise create_value_error(str(error)) from None


def _parse_placeholder(expression: Expression) -> Placeholder:
    for root, form, example in _PLACEHOLDER_FORMS:
        if root == expression.root:
            match = form.fullmatch(expression.text)
            if match is None:
                raise ValueError(f"'{expression}' is malformed; write {example}")
            name, *detail = match.groups()
            return Placeholder(
                root, name, (detail[0] or "").lstrip(".") if detail else "", expression.text
            )
    _raise_unknown(expression)


def require_roots(template: Template, roots: Container[str], hint: str) -> Template:
    """Return the template if its placeholders have these roots only; `hint` is for the message."""
    for placeholder in template.placeholders:
        if placeholder.root not in roots:
            raise create_value_error(f"'${{{placeholder.text}}}' is unknown here; use {hint}")
    return template


def _raise_unknown(expression: Expression) -> NoReturn:
    roots = [root for root, _, _ in _PLACEHOLDER_FORMS]
    raise ValueError(f"'{expression}' is unknown here; {suggest(expression.root, roots)}")


def _get_value(
    values: Mapping[str, str], name: str, status: int, description: str, cause: str | None = None
) -> str:
    try:
        return values[name]
    except KeyError:
        title = "Forbidden" if status == 403 else "Bad Request"
        what = f"the {description} is missing" + (f" ({cause})" if cause else "")
        raise RequestError(status, title, f"{what}; this route needs it") from None


def _get_claim(
    values: Mapping[str, str], name: str, description: str, cause: str | None = None
) -> str:
    """Return a claim, refusing an empty one: all clients with an empty claim would share it."""
    claim = _get_value(values, name, 403, description, cause)
    if not claim:
        raise RequestError(403, "Forbidden", f"the {description} is empty; this route needs it")
    return claim


def _get_field(placeholder: Placeholder, key: Any, value: Any) -> str | None:
    """Return a field of a record as text, None if it is missing or not a scalar."""
    field = find_field(key if placeholder.name == "key" else value, placeholder.detail)
    if field is None or isinstance(field, (Mapping, list)):
        return None
    if isinstance(field, bool):
        return "true" if field else "false"
    return field.decode("utf-8", "replace") if isinstance(field, bytes) else str(field)
