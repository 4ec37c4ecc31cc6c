"""Define the filters of a route, and the short form of conditions for an address or command line.

In the file, every text of a filter is a template.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, WrapValidator

from gateway.core.channel.exact_json import NUMBER_PATTERN, parse_number

from .fields import Flag, Pointer, Text
from .section import Problem, Section, create_value_error
from .substitution import safe_repr
from .template import REQUEST_ROOTS, Template, require_roots

TemplateRenderer = Callable[[Template], str]


def format_scalar(value: str | bool | int | float | Decimal) -> str:
    """Return the text that a text, number or boolean is compared as.

    Raises:
        ValueError: For NaN and for a number that is too large for a double: no value of a JSON
            record can be equal to it.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    text = orjson.dumps(float(value) if isinstance(value, Decimal) else value).decode()
    if text == "null":
        raise ValueError(f"{value} is no number of JSON; put it in quotes")
    return text


def _validate_scalar(value: object) -> object:
    if isinstance(value, bool | int | float):
        try:
            return format_scalar(value)
        except ValueError as error:
            raise create_value_error(str(error)) from None
    return value


def _validate_request_template(template: Template) -> Template:
    return require_roots(template, REQUEST_ROOTS, "${params.name}")


def _validate_number(value: object) -> object:
    if isinstance(value, bool):
        raise create_value_error(f"{str(value).lower()} is no number; write such as 10 or 0.5")
    return _validate_scalar(value)


def _validate_numeric_template(template: Template) -> Template:
    literal = template.literal
    if literal is not None and parse_number(literal) is None:
        raise create_value_error(f"{safe_repr(literal)} is no number; write such as 10 or 0.5")
    return template


RequestTemplate = Annotated[Template, AfterValidator(_validate_request_template)]
ScalarTemplate = Annotated[
    RequestTemplate,
    BeforeValidator(_validate_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
BoundTemplate = Annotated[
    RequestTemplate,
    BeforeValidator(_validate_number),
    AfterValidator(_validate_numeric_template),
    WithJsonSchema({"type": ["number", "string"], "pattern": rf"^({NUMBER_PATTERN})$|\$\{{"}),
]


_TEXT_OPERATORS = ("prefix", "gt", "gte", "lt", "lte")


class Condition(Section):
    """What a key, header or field must be; all options that are set must hold."""

    in_: tuple[ScalarTemplate, ...] | None = Field(
        default=None, alias="in", description="Any of these texts."
    )
    prefix: RequestTemplate | None = Field(default=None, description="What the text begins with.")
    exists: Flag | None = Field(default=None, description="Whether it is there at all.")
    gt: BoundTemplate | None = Field(default=None, description="Numbers above it.")
    gte: BoundTemplate | None = Field(default=None, description="Numbers from it on.")
    lt: BoundTemplate | None = Field(default=None, description="Numbers below it.")
    lte: BoundTemplate | None = Field(default=None, description="Numbers up to it.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if not raw:
            yield Problem((), "an empty condition holds always; add in, prefix, exists, gt or lt")
        if raw.get("in") in ([], ()):
            yield Problem(("in",), "is empty; list at least one text")
        if raw.get("exists") in (False, "false") and len(raw) > 1:
            what = "'exists: false' excludes all else; what is not there has no text"
            yield Problem(("exists",), what, is_key=True)

    @property
    def templates(self) -> Iterator[Template]:
        yield from self.in_ or ()
        for name in _TEXT_OPERATORS:
            if (template := getattr(self, name)) is not None:
                yield template

    def render(self, render_template: TemplateRenderer) -> dict[str, Any]:
        """Return the condition as a client would write it, with its placeholders filled in."""
        texts: dict[str, Any] = {
            name: render_template(template)
            for name in _TEXT_OPERATORS
            if (template := getattr(self, name)) is not None
        }
        if self.in_ is not None:
            texts["in"] = [render_template(template) for template in self.in_]
        if self.exists is not None:
            texts["exists"] = self.exists
        return texts


def _validate_condition(value: object, handler: Callable[[object], Any]) -> Condition | Template:
    """Return a template for a text, or the condition for a mapping.

    The two are distinguished here, because pydantic reports the errors of every member of a union.
    """
    if isinstance(value, (Condition, Mapping)):
        return Condition.model_validate(value)
    if isinstance(value, list | tuple):
        raise create_value_error("expects one text, not a list; write {in: [..]}")
    return _validate_request_template(Template.validate(_validate_scalar(value)))


ConditionOrTemplate = Annotated[
    Condition | Annotated[Template, WithJsonSchema({"type": ["string", "number", "boolean"]})],
    WrapValidator(_validate_condition),
]


class Filter(Section):
    """A filter of a route: key, headers and value must all match."""

    key: ConditionOrTemplate | None = Field(
        default=None, description="The record's key: a text or a condition."
    )
    headers: dict[Text, ConditionOrTemplate] = Field(
        default={}, description="Headers of the record, by name."
    )
    value: dict[Pointer, ConditionOrTemplate] = Field(
        default={}, description="Fields of the value, by JSON pointer (RFC 6901)."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        known = raw.keys() <= {"key", "headers", "value"}
        if known and "key" not in raw and not (raw.get("headers") or raw.get("value")):
            yield Problem((), "an empty filter matches every record; add key, headers or value")

    @property
    def templates(self) -> Iterator[Template]:
        keys = () if self.key is None else (self.key,)
        for condition_or_template in (*keys, *self.headers.values(), *self.value.values()):
            yield from (
                (condition_or_template,)
                if isinstance(condition_or_template, Template)
                else condition_or_template.templates
            )

    def render(self, render_template: TemplateRenderer) -> dict[str, Any]:
        def render_condition(condition: Condition | Template) -> Any:
            return (
                render_template(condition)
                if isinstance(condition, Template)
                else condition.render(render_template)
            )

        return {
            **({} if self.key is None else {"key": render_condition(self.key)}),
            "headers": {
                name: render_condition(expected) for name, expected in self.headers.items()
            },
            "value": {
                pointer: render_condition(expected) for pointer, expected in self.value.items()
            },
        }


_SHORT_FORM = re.compile(
    r"(!?)(?:(key)|header\.([^=<>^]+)|(/[^=<>^]*))(?:(\^=|>=|<=|=|<|>)(.*))?", re.DOTALL
)
_OPERATORS = {"^=": "prefix", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}


class ShortCondition(NamedTuple):
    """One condition of the short form. All conditions of a text must hold.

        key=ada  key^=a  header.region=eu  /amount>=10  /amount<20  /status=in(a,b)  /email  !/email

    A name or list that contains `=`, `<`, `>`, `^` or a comma must be written as JSON, and so must
    a name that ends with `!`, and a value that begins with `=`, `<` or `>`: these look like
    operators.

    Attributes:
        part: `key`, `headers` or `value`.
        name: The name of the header, or the JSON pointer of the field; empty for a key.
        condition: The condition as JSON has it, with exactly one operator.
    """

    part: str
    name: str
    condition: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> ShortCondition:
        """Parse one condition; raise ValueError saying what to write."""
        match = _SHORT_FORM.fullmatch(text)
        if match is None or (match[1] and match[5]):
            raise ValueError(
                f"{safe_repr(text)} is not understood; write such as key=ada, key^=a, "
                "header.region=eu, /amount>=10, /status=in(a,b), /email or !/email, "
                'or JSON such as {"key": "ada"}'
            )
        if match[5] and (text[match.start(5) - 1] == "!" or match[6][:1] in ("=", "<", ">")):
            raise ValueError(
                f"{safe_repr(text)} has an unknown operator; use =, ^=, <, <=, > or >=, or "
                "JSON for a name or a value with such characters"
            )
        condition = _build_condition(match[5], match[6]) if match[5] else {"exists": not match[1]}
        if match[2]:
            return cls("key", "", condition)
        return (
            cls("headers", match[3], condition) if match[3] else cls("value", match[4], condition)
        )


def merge_conditions(short_conditions: Iterable[ShortCondition]) -> list[dict[str, Any]]:
    """Merge conditions into as few filters as possible, all of which must match.

    `/a>=1` and `/a<9` become one range. If a condition occurs twice for the same field with the
    same operator, the first goes into the first filter and the second into the second, so that the
    position in the result follows from counting, without a search.
    """
    merged: list[dict[tuple[str, str], dict[str, Any]]] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for part, name, condition in sorted(short_conditions, key=repr):
        (operator,) = condition
        index = seen[part, name, operator]
        seen[part, name, operator] += 1
        if index == len(merged):
            merged.append({})
        merged[index].setdefault((part, name), {}).update(condition)
    return [_build_filter(conditions) for conditions in merged]


def _build_condition(operator: str, text: str) -> dict[str, Any]:
    if operator != "=":
        return {_OPERATORS[operator]: text}
    if text.startswith("in(") and text.endswith(")"):
        return {"in": text[3:-1].split(",")}
    return {"in": [text]}


def _build_filter(conditions: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for (part, name), condition in conditions.items():
        if part == "key":
            result[part] = condition
        else:
            result.setdefault(part, {})[name] = condition
    return result
