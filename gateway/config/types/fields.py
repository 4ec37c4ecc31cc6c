"""Define the types of single options: their valid values, and the message for others.

Each type reads the YAML's value (text, possibly substituted, or a number) into the typed value,
writes it back in the YAML's form, and has a JSON Schema for editors.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from . import units
from .section import create_value_error
from .substitution import SubstitutedText, describe_not_text, safe_repr, suggest

T = TypeVar("T")

_TOPIC_NAME = r"[A-Za-z0-9._-]{1,249}"
_TOPIC_GLOB = r"[A-Za-z0-9._*-]{1,249}"
_REFERENCE = re.compile(r"\$\{(env\.[A-Za-z0-9_]+|file:[^}]*)\}")
_HEADER_TEXT = r"[!-~](?:[ -~]*[!-~])?"
_POINTER = r"(?:/(?:[^~/]|~[01])*)+"


class Secret(SecretStr):
    """A text that is never printed.

    Attributes:
        source: The `${...}` that the whole text came from; None if the file holds the text itself.
    """

    def __init__(self, value: str, source: str | None = None) -> None:
        super().__init__(value)
        self.source = source


def validate_text(value: object) -> str:
    """Return a text that is not empty and has no control characters."""
    if value is None:
        raise create_value_error("is empty; give it a text or remove it")
    if not isinstance(value, str):
        raise create_value_error(describe_not_text(value))
    if isinstance(value, SubstitutedText) and not value.is_resolved:
        raise create_value_error(f"{safe_repr(value)} is known per request only; use ${{env.NAME}}")
    if not value.strip():
        raise create_value_error("is empty; give it a text or remove it")
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise create_value_error(
            f"{safe_repr(value)} has a control character or line break; remove it"
        )
    return str(value)


SUBSTITUTION_SCHEMA = {"type": "string", "pattern": r"\$\{(env\.|file:)"}
"""The JSON Schema of a text that is replaced by a variable or the content of a file."""


class Choice:
    """The annotation of an option whose value is one of some names, which may become more.

    A `Literal` would have its names fixed. The message is the same.
    """

    def __init__(self, list_names: Callable[[], Sequence[str]]) -> None:
        self._list_names = list_names

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"enum": list(self._list_names()), "type": "string"}

    def _validate(self, value: object) -> str:
        names = self._list_names()
        if isinstance(value, str) and value in names:
            return str(value)
        shown = "nothing" if value is None else safe_repr(value)
        hint = suggest(value, names) if isinstance(value, str) else f"use {' or '.join(names)}"
        raise create_value_error(f"{shown} is not known here; {hint}")


def _validate_secret(value: object) -> Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise create_value_error("expects text, and this is none; put it in quotes")
    if isinstance(value, SubstitutedText) and not value.is_resolved:
        raise create_value_error(
            "is a secret, which no request fills in; use ${env.NAME} or ${file:path}"
        )
    if not value:
        raise create_value_error("is empty; use ${env.NAME} or ${file:path}")
    source = value.source if isinstance(value, SubstitutedText) else ""
    return Secret(str(value), source if _REFERENCE.fullmatch(source) else None)


def _validate_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    raise create_value_error(f"{safe_repr(value)} is neither true nor false; write true or false")


def _validate_number(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, SubstitutedText) and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    raise create_value_error(
        f"{safe_repr(value)} is not a whole number; write such as 8080, without quotes"
    )


def create_quantity_validator(parse: Callable[[str], T], example: str) -> Callable[[object], T]:
    """Return a validator of a number with a unit; `parse` raises ValueError with the remedy."""

    def validate(value: object) -> T:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise create_value_error(
                f"{value} has no unit; write a number and a unit, such as {example}"
            )
        if not isinstance(value, str):
            raise create_value_error(f"{safe_repr(value)} is no text; write such as {example}")
        try:
            return parse(str(value))
        except ValueError as error:
            if isinstance(value, SubstitutedText):
                message = (
                    f"{safe_repr(value)} gives no number with a unit; set it to such as {example}"
                )
                raise create_value_error(message) from None
            raise create_value_error(str(error)) from None

    return validate


def _validate_rate(value: object) -> units.Rate:
    return (
        value
        if isinstance(value, units.Rate)
        else create_quantity_validator(units.parse_rate, "20/s")(value)
    )


def in_range(
    low: float, high: float, format_value: Callable[[Any], str] = units.format_duration
) -> AfterValidator:
    """Return a validator of bounds, both included, in the field's own unit."""

    def validate(value: float) -> float:
        if low <= value <= high:
            return value
        limits = f"{format_value(low)} to {format_value(high)}"
        raise create_value_error(f"{format_value(value)} is out of range; use {limits}")

    return AfterValidator(validate)


def matching(pattern: str, message: str, *, but: Collection[str] = ()) -> BeforeValidator:
    """Return a validator of a text that matches a pattern as a whole.

    Args:
        message: What is wrong with other texts and what to do, without the text itself.
        but: Texts that match, and are invalid nevertheless.
    """
    compiled = re.compile(pattern)

    def validate(value: object) -> str:
        text = validate_text(value)
        if text in but or not compiled.fullmatch(text):
            raise create_value_error(f"{safe_repr(value)} {message}")
        return text

    return BeforeValidator(validate)


def _validate_history(value: object) -> Literal["none", "all"] | float:
    if isinstance(value, str) and value in ("none", "all"):
        return "none" if value == "none" else "all"
    if isinstance(value, str) and not isinstance(value, SubstitutedText) and value.isalpha():
        raise create_value_error(
            f"{safe_repr(value)} is no history; write none, all or a duration such as 24h"
        )
    return create_quantity_validator(units.parse_duration, "24h")(value)


def _validate_file(value: object, info: ValidationInfo) -> Path:
    """Return the absolute path of a file that exists, relative to the folder of the YAML file."""
    if isinstance(value, Path):
        return value
    text = validate_text(value)
    if text.startswith("-----BEGIN"):
        raise create_value_error("holds a certificate or key; give the path of its file instead")
    path = Path((info.context or {}).get("base", "."), text).absolute()
    if not path.is_file():
        raise create_value_error(
            f"file {safe_repr(value)} does not exist; paths are relative to this file"
        )
    return path


def _json_schema(**schema: Any) -> WithJsonSchema:
    return WithJsonSchema(schema)


DURATION_PATTERN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"
RATE_PATTERN = r"^[0-9]+/(s|m|h)$"
TOPIC_NAME_SCHEMA = {"type": "string", "pattern": f"^{_TOPIC_NAME}$"}
"""The JSON Schema of the name of a topic."""
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?(B|kB|MB|GB|KiB|MiB|GiB|TiB)$"

Text: TypeAlias = Annotated[
    str, BeforeValidator(validate_text), _json_schema(type="string", minLength=1)
]
SecretText: TypeAlias = Annotated[
    Secret,
    PlainValidator(_validate_secret),
    PlainSerializer(str),
    _json_schema(type="string", minLength=1, writeOnly=True),
]
Flag: TypeAlias = Annotated[bool, PlainValidator(_validate_flag), _json_schema(type="boolean")]
Number: TypeAlias = Annotated[
    int, PlainValidator(_validate_number), _json_schema(type="integer", minimum=0)
]
Duration: TypeAlias = Annotated[
    float,
    PlainValidator(create_quantity_validator(units.parse_duration, "5s")),
    PlainSerializer(units.format_duration),
    _json_schema(type="string", pattern=DURATION_PATTERN),
]
Rate: TypeAlias = Annotated[
    units.Rate,
    PlainValidator(_validate_rate),
    PlainSerializer(units.format_rate),
    _json_schema(type="string", pattern=RATE_PATTERN),
]
Size: TypeAlias = Annotated[
    int,
    PlainValidator(create_quantity_validator(units.parse_size, "64MiB")),
    PlainSerializer(units.format_size),
    _json_schema(type="string", pattern=SIZE_PATTERN),
]
TopicName: TypeAlias = Annotated[
    str,
    matching(
        _TOPIC_NAME,
        "is no topic name; use letters, digits, '.', '_' and '-', at most 249",
        but=(".", ".."),
    ),
    WithJsonSchema(TOPIC_NAME_SCHEMA),
]
HeaderText: TypeAlias = Annotated[
    str,
    matching(_HEADER_TEXT, "goes to the back end in a header; use ASCII, no spaces around it"),
    _json_schema(type="string", pattern=f"^{_HEADER_TEXT}$"),
]
TopicGlob: TypeAlias = Annotated[
    str,
    matching(_TOPIC_GLOB, "is no topic or pattern; write such as orders or pay-*", but=(".", "..")),
    _json_schema(type="string", pattern=f"^{_TOPIC_GLOB}$"),
]
Pointer: TypeAlias = Annotated[
    str,
    matching(_POINTER, "is no JSON pointer; write such as /region (RFC 6901)"),
    _json_schema(type="string", pattern="^/"),
]
File: TypeAlias = Annotated[
    Path,
    PlainValidator(_validate_file),
    PlainSerializer(str),
    _json_schema(type="string", minLength=1),
]
History: TypeAlias = Annotated[
    Literal["none", "all"] | float,
    PlainValidator(_validate_history),
    PlainSerializer(
        lambda value: value if isinstance(value, str) else units.format_duration(value)
    ),
    WithJsonSchema(
        {"anyOf": [{"enum": ["none", "all"]}, {"type": "string", "pattern": DURATION_PATTERN}]}
    ),
]
