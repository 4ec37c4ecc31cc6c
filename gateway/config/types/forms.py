"""Describe options that may be written in several forms, and sections of several kinds.

`topics: [orders]`, `guarded: [login]` and a route with `path` and `topic` mean the same as the long
form. An option is also known by its name in the other case (`max-age` and `maxAge`) and by an old
name that its section lists. `expand` writes all of these out before anything is checked. So the
checks between sections and the printed configuration know no other form. Problems are still
reported where the file has them: an expansion has the path of the file for each path that it
creates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import or_
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializationInfo,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from .fields import SUBSTITUTION_SCHEMA, Text
from .section import (
    ErrorKey,
    Loc,
    Problem,
    Section,
    WrittenForm,
    as_mapping,
    build_details,
    build_error,
    create_value_error,
    describe_unknown_keys,
    read_errors,
)
from .substitution import SubstitutedText, describe_not_text, safe_repr, suggest

S = TypeVar("S", bound=Section)


class Kinds(dict[str, type[S]], Generic[S]):
    """The kinds of a section by name, and the annotation of an option that has any of them.

    Each kind is a subclass of the same section, with a `Literal` of its name as the option that
    chooses it. A kind that is entered later counts from then on: sections are looked up when a file
    is validated, and when the JSON Schema is built.

    A problem in a section is reported at its own place, once, and names only options of its kind: a
    pydantic union would report it for every kind, and a discriminated one has its members fixed.
    """

    def __init__(
        self,
        noun: str,
        kinds: Mapping[str, type[S]],
        *,
        option: str = "type",
        default: str | None = None,
    ) -> None:
        """Enter the first kinds.

        Args:
            noun: The noun for messages, such as `guard`.
            default: The name of the kind if the option is missing; None if it must not be.
        """
        super().__init__(kinds)
        self._noun = noun
        self._option = option
        self._default = default

    def find(self, raw: Mapping[Any, Any]) -> type[S] | None:
        """Return the kind of a section as written; None if it names none that is known."""
        name = self._get_name(raw)
        return self.get(name) if isinstance(name, str) else None

    def list_options(self) -> list[str]:
        return list(
            dict.fromkeys(chain.from_iterable(kind.list_options() for kind in self.values()))
        )

    def _describe_key(self, key: str) -> str | None:
        """Return the message for a key that only other kinds have; None for any other."""
        names = self._list_kinds_with(key)
        if not names:
            return None
        return f"'{key}' is for {self._option}: {' or '.join(names)}; add that, or remove it"

    def _list_kinds_with(self, option: str) -> list[str]:
        return [name for name, kind in self.items() if option in kind.list_options()]

    def _get_name(self, raw: Mapping[Any, Any]) -> object:
        name = raw.get(self._option)
        return self._default if name is None else name

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        serialization = core_schema.plain_serializer_function_ser_schema(
            _serialize_section, info_arg=True
        )
        return core_schema.with_info_plain_validator_function(
            self._validate, serialization=serialization
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON Schema of a section: that of its kind, chosen by the option.

        With `oneOf`, an editor would report every problem at the section, not at its option.
        """
        # As the members of a union the sections become definitions; alone they would be inlined.
        union: Any = Annotated[reduce(or_, self.values()), Field(discriminator=self._option)]
        sections = handler(TypeAdapter(union).core_schema)["oneOf"]
        choices = []
        for name, section in zip(self, sections, strict=True):
            condition: JsonSchemaValue = {"properties": {self._option: {"const": name}}}
            if name != self._default:
                condition["required"] = [self._option]
            choices.append({"if": condition, "then": section})
        names = {"anyOf": [{"enum": list(self)}, SUBSTITUTION_SCHEMA]}
        required = {} if self._default else {"required": [self._option]}
        properties = {self._option: names}
        return {"type": "object", "properties": properties, **required, "allOf": choices}

    def _validate(self, value: object, info: ValidationInfo) -> Section:
        if isinstance(value, Section) and type(value) in self.values():
            return value
        if not isinstance(value, Mapping):
            return next(iter(self.values())).model_validate(value)  # raises: it is not a mapping
        kind = self.find(value)
        if kind is not None:
            try:
                return kind.model_validate(value, context=info.context)
            except ValidationError as error:
                errors = describe_unknown_keys(read_errors(error), self._describe_key)
                raise build_error(errors) from None
        unknown = build_details(self._describe_name(self._get_name(value)))
        raise build_error([unknown, *self._find_certain_errors(value, info)])

    def _describe_name(self, name: object) -> Problem:
        choice = f"one of {', '.join(self)}"
        if name is None:
            return Problem((), f"'{self._option}' is missing; add {choice}", is_key=True)
        hint = suggest(name, self) if isinstance(name, str) else f"use {choice}"
        return Problem((self._option,), f"{safe_repr(name)} is no kind of {self._noun}; {hint}")

    def _find_certain_errors(
        self, value: Mapping[Any, Any], info: ValidationInfo
    ) -> Iterable[InitErrorDetails]:
        """Return the problems of a section of an unknown kind that hold for any kind.

        An error of an option counts if all kinds that have the option report it, any other error if
        all kinds do. So a wrong topic is reported together with a misspelt `capability`, and an
        option that only another kind lacks is not.
        """
        reported: dict[str, dict[ErrorKey, InitErrorDetails]] = {name: {} for name in self}
        for name, kind in self.items():
            try:
                kind.model_validate({**value, self._option: name}, context=info.context)
            except ValidationError as error:
                reported[name] = read_errors(error)
        certain: dict[ErrorKey, InitErrorDetails] = {}
        for errors in reported.values():
            for key, details in errors.items():
                option = str(key[0][0]) if key[0] and key[0][0] in value else ""
                names = self._list_kinds_with(option) or list(self)
                if all(key in reported[name] for name in names):
                    certain[key] = details
        return certain.values()


def _serialize_section(section: Section, info: SerializationInfo) -> Any:
    return section.model_dump(mode=info.mode, by_alias=bool(info.by_alias))


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
        if is_section(kind):
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
        options = kind.list_options()
        return {
            key: self.expand(options[key], item, *self._descend(loc, written, key))
            if key in options
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


def resolve_type(kind: Any, value: Any) -> tuple[Any, list[Shorthand]]:
    """Return the type that fits a value, without annotations, and its shorthands.

    The type of a section that names no known kind is that of all kinds.
    """
    shorthands: list[Shorthand] = []
    while True:
        if get_origin(kind) is Annotated:
            kind, *metadata = get_args(kind)
            shorthands += [item for item in metadata if isinstance(item, Shorthand)]
            kinds = next((item for item in metadata if isinstance(item, Kinds)), None)
            if kinds is not None:
                return kinds.find(as_mapping(value)) or kinds, shorthands
        elif get_origin(kind) in (Union, UnionType):
            kind = _choose_member(get_args(kind), value)
        else:
            return kind, shorthands


AnySection: TypeAlias = type[Section] | Kinds[Any] | None
"""A section, all kinds of one, or None for what has no options."""


def is_section(kind: object) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def find_sections(root: type[Section], loc: Loc, values: Any) -> list[AnySection]:
    """Return the section at each step of a path, beginning with the root."""
    kind: Any = root
    sections: list[AnySection] = [root]
    for step in loc:
        kind, values = get_child_type(kind, step), get_item(values, step)
        kind, _ = resolve_type(kind, values)
        if get_origin(kind) is tuple and isinstance(values, Mapping):
            kind, _ = resolve_type(get_args(kind)[0], values)  # an item stands for a list of one
        sections.append(kind if is_section(kind) or isinstance(kind, Kinds) else None)
    return sections


def get_child_type(kind: Any, step: str | int) -> Any:
    """Return the type of an option or item of a resolved type; None if there is none."""
    if isinstance(kind, Kinds):
        children = (member.list_options().get(step) for member in kind.values())
        return next((child for child in children if child is not None), None)
    if is_section(kind):
        return kind.list_options().get(str(step))
    if get_origin(kind) in (tuple, dict):
        return get_args(kind)[0 if get_origin(kind) is tuple else 1]
    return None


def get_item(values: Any, step: str | int) -> Any:
    """Return an item of values as written; None if there is none."""
    if isinstance(values, str):
        return None  # the content of a `${file:...}` has no place in this file
    try:
        return values[step]
    except (KeyError, IndexError, TypeError):
        return None


def _choose_member(members: tuple[Any, ...], value: Any) -> Any:
    """Return the member of a union that fits a value; None if that is unknown."""
    candidates = [member for member in members if member is not type(None)]
    if len(candidates) == 1:
        return candidates[0]
    if not isinstance(value, Mapping):
        return None
    sections = list(filter(is_section, candidates))
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
    has_options = section.list_options().keys() & value.keys()
    return not has_options and any(isinstance(item, Mapping) for item in value.values())


def _expand_names(value: Any) -> WrittenForm | None:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        return None
    moves: dict[Loc, Loc] = {(name,): (index,) for index, name in enumerate(value)}
    return WrittenForm({name: [] for name in value}, moves)


def _check_form(value: Any) -> Any:
    if value is None:
        raise create_value_error("is empty; name a guard, or remove it")
    if not isinstance(value, (list, tuple)):
        if isinstance(value, Mapping):
            return value
        hint = f"write [{_show_name(value)}]"
        raise create_value_error(f"expects guards, not {safe_repr(value)}; {hint}")
    for item in value:
        if isinstance(item, Mapping):
            what = "a list has names of guards and no roles"
            hint = f"write {{{_show_name(next(iter(item), None))}: [ROLE]}}"
            raise create_value_error(f"{what}; to require roles, {hint}")
        if not isinstance(item, str):
            raise create_value_error(describe_not_text(item, "names of guards"))
    return value


def _show_name(written: object) -> str:
    """Return a text as the name of a guard, for a hint; NAME if it cannot be one."""
    is_plain = isinstance(written, str) and not isinstance(written, SubstitutedText)
    return str(written) if is_plain and re.fullmatch(r"[\w-]{1,40}", str(written)) else "NAME"


Guarded: TypeAlias = Annotated[
    dict[Text, tuple[Text, ...]],
    Shorthand(_expand_names, {"type": "array", "items": {"type": "string", "minLength": 1}}),
    BeforeValidator(_check_form),
]
"""Guards by name, each with its roles. A list of names requires no roles."""
