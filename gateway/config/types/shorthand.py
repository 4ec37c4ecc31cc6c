"""Write shorthands and old spellings of options out, before anything is checked.

`topics: [orders]`, `guarded: [login]` and a route with `path` and `topic` mean the same as the long
form. An option is also known by its name in the other case (`max-age` and `maxAge`) and by an old
name that its section lists. After `expand` the values have one form only, so that the checks
between sections and the printed configuration know no other.

Problems are still reported where the file has them: an expansion has the path of the file for each
path that it creates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from .fields import Text
from .kinds import Kinds
from .section import Loc, Section, WrittenForm


class Shorthand:
    """The annotation of an option or item that may be written in a shorter form.

    Args:
        expand: Returns the long form of a value; None if it is not written in the short form.
        short_schema: The JSON Schema of the short form, which must have a `type`.
    """

    def __init__(
        self, expand: Callable[[Any], WrittenForm | None], short_schema: JsonSchemaValue
    ) -> None:
        self.expand = expand
        self._short_schema = short_schema

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._expand_value, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON Schema of both forms.

        With `anyOf`, an editor would report every problem at the option, not below it.
        """
        is_short = {"type": self._short_schema["type"]}
        return {"if": is_short, "then": self._short_schema, "else": handler(schema)}

    def _expand_value(self, value: Any) -> Any:
        form = self.expand(value)
        return value if form is None else form.value


def _expand_text(value: Any) -> WrittenForm | None:
    return WrittenForm([value], {(0,): ()}) if isinstance(value, str) else None


TextOrList: TypeAlias = Annotated[
    tuple[Text, ...], Shorthand(_expand_text, {"type": "string", "minLength": 1})
]
"""A list of texts. A text alone is a list of one."""


@dataclass(slots=True)
class Expansion:
    """The long form of a configuration.

    Attributes:
        moves: For each path that the file does not have: the path of the file that it is from,
            which holds for everything below it, too.
        old_spellings: The paths in the file of options with an old spelling, each with the new one.
    """

    values: Any = None
    moves: dict[Loc, Loc] = field(default_factory=dict)
    old_spellings: dict[Loc, str] = field(default_factory=dict)


def expand(kind: type[Section], values: Any) -> Expansion:
    """Return the long form of a configuration. Invalid values stay as they are."""
    expansion = Expansion()
    expansion.values = _Expander(expansion).expand(kind, values, (), ())
    return expansion


@dataclass(slots=True)
class _Expander:
    expansion: Expansion

    def expand(self, kind: Any, value: Any, loc: Loc, written: Loc) -> Any:
        """Return the long form of the value at a path, which the file has at the path `written`."""
        if isinstance(value, BaseModel):
            return value
        kind, shorthands = resolve_type(kind, value)
        for shorthand in shorthands:
            value = self._apply(shorthand.expand(value), value, loc, written)
        if isinstance(kind, type) and issubclass(kind, Section):
            return self._expand_section(kind, value, loc, written)
        if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
            item_kind = get_args(kind)[0]
            return [
                self.expand(item_kind, item, *self._descend(loc, written, index))
                for index, item in enumerate(value)
            ]
        if get_origin(kind) is dict and isinstance(value, Mapping):
            item_kind = get_args(kind)[1]
            return {
                key: self.expand(item_kind, item, *self._descend(loc, written, key))
                for key, item in value.items()
            }
        return value

    def _expand_section(self, kind: type[Section], value: Any, loc: Loc, written: Loc) -> Any:
        value = self._apply(kind.expand_written(value), value, loc, written)
        if not isinstance(value, Mapping):
            return value
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        return {
            key: self.expand(get_full_type(fields[key]), item, *self._descend(loc, written, key))
            if key in fields
            else item
            for key, item in value.items()
        }

    def _apply(self, form: WrittenForm | None, value: Any, loc: Loc, written: Loc) -> Any:
        if form is None:
            return value
        for inner, source in form.moves.items():
            self.expansion.moves[(*loc, *inner)] = (*written, *source)
        for old, new in form.old_spellings.items():
            self.expansion.old_spellings[(*written, old)] = new
        return form.value

    def _descend(self, loc: Loc, written: Loc, step: Any) -> tuple[Loc, Loc]:
        inner = (*loc, step)
        return inner, self.expansion.moves.get(inner, (*written, step))


def get_full_type(field: FieldInfo) -> Any:
    """Return the type of an option with its annotations, which pydantic keeps apart."""
    if not field.metadata:
        return field.annotation
    return Annotated[field.annotation, *field.metadata]


def resolve_type(kind: Any, value: Any) -> tuple[Any, list[Shorthand]]:
    """Return the type that fits a value, without annotations, and its shorthands."""
    shorthands: list[Shorthand] = []
    while True:
        if get_origin(kind) is Annotated:
            kind, *metadata = get_args(kind)
            shorthands += [item for item in metadata if isinstance(item, Shorthand)]
            kinds = next((item for item in metadata if isinstance(item, Kinds)), None)
            if kinds is not None:
                return kinds.find(value) if isinstance(value, Mapping) else None, shorthands
        elif get_origin(kind) in (Union, UnionType):
            kind = _choose_member(get_args(kind), value)
        else:
            return kind, shorthands


def _choose_member(members: tuple[Any, ...], value: Any) -> Any:
    """Return the member of a union that fits a value; None if that is unknown."""
    candidates = [member for member in members if member is not type(None)]
    if len(candidates) == 1:
        return candidates[0]
    if not isinstance(value, Mapping):
        return None
    sections = [
        member for member in candidates if isinstance(member, type) and issubclass(member, Section)
    ]
    if len(sections) == 1:
        mappings = [member for member in candidates if get_origin(member) is dict]
        return mappings[0] if mappings and _has_names(sections[0], value) else sections[0]
    return next((section for section in sections if _is_named_by(section, value)), None)


def _is_named_by(section: type[Section], value: Mapping[Any, Any]) -> bool:
    """Return whether an option of a value names this section of a discriminated union."""
    return any(
        get_origin(field.annotation) is Literal
        and field.is_required()
        and value.get(field.alias or name) in get_args(field.annotation)
        for name, field in section.model_fields.items()
    )


def _has_names(section: type[Section], value: Mapping[Any, Any]) -> bool:
    """Return whether a value has sections by name, rather than the options of one section."""
    options = {field.alias or name for name, field in section.model_fields.items()}
    return not options & value.keys() and any(isinstance(item, Mapping) for item in value.values())
