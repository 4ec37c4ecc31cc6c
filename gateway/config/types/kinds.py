"""Validate a section that is one of several kinds, chosen by one of its options."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import chain
from operator import or_
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializationInfo,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from gateway.config.source.substitution import safe_repr, suggest

from .fields import SUBSTITUTION_SCHEMA
from .section import (
    ErrorKey,
    Problem,
    Section,
    create_section_error,
    list_errors,
    merge_errors,
    replace_unknown_keys,
    select_errors,
)

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
        options = (_list_options(kind) for kind in self.values())
        return list(dict.fromkeys(chain.from_iterable(options)))

    def _describe_key(self, key: str) -> str | None:
        """Return the message for a key that only other kinds have; None for any other."""
        names = [name for name, kind in self.items() if _has_option(kind, key)]
        if not names:
            return None
        return f"'{key}' is for {self._option}: {' or '.join(names)}; add that, or remove it"

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
                raise replace_unknown_keys(error, self._describe_key) from None
        raise merge_errors(
            self._noun,
            [
                create_section_error(self._describe_name(self._get_name(value))),
                *self._find_certain_errors(value, info),
            ],
        )

    def _describe_name(self, name: object) -> Problem:
        choice = f"one of {', '.join(self)}"
        if name is None:
            return Problem((), f"'{self._option}' is missing; add {choice}", is_key=True)
        hint = suggest(name, self) if isinstance(name, str) else f"use {choice}"
        return Problem((self._option,), f"{safe_repr(name)} is no kind of {self._noun}; {hint}")

    def _find_certain_errors(
        self, value: Mapping[Any, Any], info: ValidationInfo
    ) -> list[ValidationError]:
        """Return the problems of a section of an unknown kind that hold for any kind.

        An error of an option counts if all kinds that have the option report it, any other error if
        all kinds do. So a wrong topic is reported together with a misspelt `capability`, and an
        option that only another kind lacks is not.
        """
        errors: dict[str, ValidationError] = {}
        for name, kind in self.items():
            try:
                kind.model_validate({**value, self._option: name}, context=info.context)
            except ValidationError as error:
                errors[name] = error
        reported = {name: set(list_errors(error)) for name, error in errors.items()}

        def is_certain(key: ErrorKey) -> bool:
            loc = key[0]
            option = str(loc[0]) if loc and loc[0] in value else ""
            names = [name for name, kind in self.items() if _has_option(kind, option)] or list(self)
            return all(key in reported.get(name, ()) for name in names)

        certain: list[ValidationError] = []
        seen: set[ErrorKey] = set()
        for of_kind in errors.values():
            selected = select_errors(of_kind, lambda key: is_certain(key) and key not in seen)
            if selected is not None:
                certain.append(selected)
                seen.update(list_errors(selected))
        return certain


def _has_option(kind: type[Section], key: str) -> bool:
    return key in _list_options(kind)


def _list_options(kind: type[Section]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]


def _serialize_section(section: Section, info: SerializationInfo) -> Any:
    return section.model_dump(mode=info.mode, by_alias=bool(info.by_alias))
