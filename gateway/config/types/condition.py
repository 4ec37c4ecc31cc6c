"""The filters of a route, as the file has them: every text may have holes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, WrapValidator

from gateway.config.source.substitution import shown
from gateway.config.source.template import REQUEST, Template, only
from gateway.core.channel.exact_json import number_of

from .fields import Flag, Pointer, Text
from .section import Problem, Section, refused

Render = Callable[[Template], str]


def scalar(value: str | bool | int | float | Decimal) -> str:
    """The text that a text, number or boolean is compared as. Raises ValueError for NaN and what
    is too large for a double: no value of a record is."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    text = orjson.dumps(float(value) if isinstance(value, Decimal) else value).decode()
    if text == "null":
        raise ValueError(f"{value} is no number of JSON; put it in quotes")
    return text


def _scalar(value: object) -> object:
    if isinstance(value, bool | int | float):
        try:
            return scalar(value)
        except ValueError as error:
            raise refused(str(error)) from None
    return value


def _of_request(template: Template) -> Template:
    return only(template, REQUEST, "${params.name}")


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise refused(f"{str(value).lower()} is no number; write such as 10 or 0.5")
    return _scalar(value)


def _numeric(template: Template) -> Template:
    literal = template.literal
    if literal is not None and number_of(literal) is None:
        raise refused(f"{shown(literal)} is no number; write such as 10 or 0.5")
    return template


RequestTemplate = Annotated[Template, AfterValidator(_of_request)]
Scalar = Annotated[
    RequestTemplate,
    BeforeValidator(_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
Bound = Annotated[
    RequestTemplate,
    BeforeValidator(_number),
    AfterValidator(_numeric),
    WithJsonSchema({"type": ["number", "string"]}),
]


_TEXTS = ("prefix", "gt", "gte", "lt", "lte")


class Condition(Section):
    """What a key, header or field must be; all that is given must hold."""

    in_: tuple[Scalar, ...] | None = Field(
        default=None, alias="in", description="Any of these texts. For choices."
    )
    prefix: RequestTemplate | None = Field(
        default=None, description="What the text begins with. For keys with parts."
    )
    exists: Flag | None = Field(
        default=None, description="Whether it is there at all. For optional fields."
    )
    gt: Bound | None = Field(default=None, description="Numbers above it. For thresholds.")
    gte: Bound | None = Field(default=None, description="Numbers from it on. For thresholds.")
    lt: Bound | None = Field(default=None, description="Numbers below it. For thresholds.")
    lte: Bound | None = Field(default=None, description="Numbers up to it. For thresholds.")

    @classmethod
    def look(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if not raw:
            yield Problem((), "an empty condition holds always; add in, prefix, exists, gt or lt")
        if raw.get("in") in ([], ()):
            yield Problem(("in",), "is empty; list at least one text")
        if raw.get("exists") in (False, "false") and len(raw) > 1:
            what = "'exists: false' excludes all else; what is not there has no text"
            yield Problem(("exists",), what, key=True)

    @property
    def templates(self) -> Iterator[Template]:
        """All of its texts."""
        yield from self.in_ or ()
        for name in _TEXTS:
            if (template := getattr(self, name)) is not None:
                yield template

    def written(self, render: Render) -> dict[str, Any]:
        """As a client would write it, its holes filled in."""
        texts: dict[str, Any] = {
            name: render(template)
            for name in _TEXTS
            if (template := getattr(self, name)) is not None
        }
        if self.in_ is not None:
            texts["in"] = [render(template) for template in self.in_]
        if self.exists is not None:
            texts["exists"] = self.exists
        return texts


def _wanted(value: object, inner: Callable[[object], Any]) -> Condition | Template:
    """A text, or the options of a condition. Told apart here: a union would tell what is wrong
    as seen by each of its members."""
    if isinstance(value, (Condition, Mapping)):
        return Condition.model_validate(value)
    if isinstance(value, list | tuple):
        raise refused("expects one text, not a list; write {in: [..]}")
    return _of_request(Template.validate(_scalar(value)))


Wanted = Annotated[
    Condition | Annotated[Template, WithJsonSchema({"type": ["string", "number", "boolean"]})],
    WrapValidator(_wanted),
]


class Filter(Section):
    """All of its parts must match."""

    key: Wanted | None = Field(
        default=None, description="The record's key, a text or a condition. For own records only."
    )
    headers: dict[Text, Wanted] = Field(
        default={}, description="Headers of the record, by name. For own records only."
    )
    value: dict[Pointer, Wanted] = Field(
        default={},
        description="Fields of the value, by JSON pointer (RFC 6901). For own records only.",
    )

    @classmethod
    def look(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        known = raw.keys() <= {"key", "headers", "value"}
        if known and "key" not in raw and not (raw.get("headers") or raw.get("value")):
            yield Problem((), "an empty filter matches every record; add key, headers or value")

    @property
    def templates(self) -> Iterator[Template]:
        """All of its texts."""
        keys = () if self.key is None else (self.key,)
        for wanted in (*keys, *self.headers.values(), *self.value.values()):
            yield from (wanted,) if isinstance(wanted, Template) else wanted.templates

    def written(self, render: Render) -> dict[str, Any]:
        """As a client would write it, its holes filled in."""

        def one(wanted: Condition | Template) -> Any:
            return render(wanted) if isinstance(wanted, Template) else wanted.written(render)

        return {
            **({} if self.key is None else {"key": one(self.key)}),
            "headers": {name: one(wanted) for name, wanted in self.headers.items()},
            "value": {pointer: one(wanted) for pointer, wanted in self.value.items()},
        }
