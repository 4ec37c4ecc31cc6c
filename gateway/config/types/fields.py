"""The types of single options: what a value may be, and what to say when it is not.

Each reads what the YAML gave (text, possibly substituted, or a number) into the typed
value, writes it back as the YAML's words, and tells editors its JSON Schema.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)

from gateway.config.source.substitution import Substituted, shown

from . import units
from .section import refused

T = TypeVar("T")

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_GLOB = re.compile(r"[A-Za-z0-9._*-]{1,249}")
_REFERENCE = re.compile(r"\$\{(env\.[A-Za-z0-9_]+|file:[^}]*)\}")
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)*")


class Secret(SecretStr):
    """A text that is never printed. `source`: the whole `${...}` it came from, if one."""

    def __init__(self, value: str, source: str | None = None) -> None:
        super().__init__(value)
        self.source = source


def text(value: object) -> str:
    """A text, not empty, of visible characters."""
    if not isinstance(value, str):
        raise refused(f"expects text, not {shown(value)}; put it in quotes")
    if isinstance(value, Substituted) and not value.settled:
        raise refused(f"{shown(value)} is known per request only; use ${{env.NAME}}")
    if not value.strip():
        raise refused("is empty; give it a text or remove it")
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise refused(f"{shown(value)} has a control character or line break; remove it")
    return str(value)


def _secret(value: object) -> Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise refused("expects text, and this is none; put it in quotes")
    if isinstance(value, Substituted) and not value.settled:
        raise refused("is a secret, which no request fills in; use ${env.NAME} or ${file:path}")
    if not value:
        raise refused("is empty; use ${env.NAME} or ${file:path}")
    source = value.source if isinstance(value, Substituted) else ""
    return Secret(str(value), source if _REFERENCE.fullmatch(source) else None)


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    raise refused(f"{shown(value)} is neither true nor false; write true or false")


def _number(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, Substituted) and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    raise refused(f"{shown(value)} is not a whole number; write such as 8080, without quotes")


def _quantity(read: Callable[[str], T], example: str) -> Callable[[object], T]:
    def quantity(value: object) -> T:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise refused(f"{value} has no unit; write a number and a unit, such as {example}")
        if not isinstance(value, str):
            raise refused(f"{shown(value)} is no text; write such as {example}")
        try:
            return read(str(value))
        except ValueError as error:
            if isinstance(value, Substituted):
                what = f"{shown(value)} gives no number with a unit; set it to such as {example}"
                raise refused(what) from None
            raise refused(str(error)) from None

    return quantity


def _rate(value: object) -> units.Rate:
    return value if isinstance(value, units.Rate) else _quantity(units.rate, "20/s")(value)


def within(
    low: float, high: float, show: Callable[[Any], str] = units.show_duration
) -> AfterValidator:
    """Bounds, both included, in the field's own unit."""

    def check(value: float) -> float:
        if low <= value <= high:
            return value
        what = f"{show(value)} is out of range; use {show(low)} to {show(high)}"
        raise refused(what)

    return AfterValidator(check)


def _checked(read: Callable[[str], str]) -> BeforeValidator:
    """A text with one more rule. `read` raises ValueError, with `{}` for the value."""

    def check(value: object) -> str:
        given = text(value)
        try:
            return read(given)
        except ValueError as error:
            raise refused(str(error).replace("{}", shown(value))) from None

    return BeforeValidator(check)


def _topic(name: str) -> str:
    if name in (".", "..") or not _TOPIC.fullmatch(name):
        raise ValueError("{} is no topic name; use letters, digits, '.', '_' and '-', at most 249")
    return name


def _glob(pattern: str) -> str:
    if pattern in (".", "..") or not _GLOB.fullmatch(pattern):
        raise ValueError("{} is no topic or pattern; write such as orders or pay-*")
    return pattern


def _pointer(pointer: str) -> str:
    if not pointer.startswith("/") or not _POINTER.fullmatch(pointer):
        raise ValueError("{} is no JSON pointer; write such as /region (RFC 6901)")
    return pointer


def _history(value: object) -> Literal["none", "all"] | float:
    if isinstance(value, str) and value in ("none", "all"):
        return "none" if value == "none" else "all"
    if isinstance(value, str) and not isinstance(value, Substituted) and value.isalpha():
        raise refused(f"{shown(value)} is no history; write none, all or a duration such as 24h")
    return _quantity(units.duration, "24h")(value)


def _file(value: object, info: ValidationInfo) -> Path:
    if isinstance(value, Path):
        return value
    given = text(value)
    if given.startswith("-----BEGIN"):
        raise refused("holds a certificate or key; give the path of its file instead")
    path = Path((info.context or {}).get("base", "."), given).absolute()
    if not path.is_file():
        raise refused(f"file {shown(value)} does not exist; start from the folder of this file")
    return path


def _schema(**schema: Any) -> WithJsonSchema:
    return WithJsonSchema(schema)


DURATION = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"
RATE = r"^[0-9]+/(s|m|h)$"
SIZE = r"^[0-9]+(\.[0-9]+)?(B|kB|MB|GB|KiB|MiB|GiB|TiB)$"

Text: TypeAlias = Annotated[str, BeforeValidator(text), _schema(type="string", minLength=1)]
SecretText: TypeAlias = Annotated[
    Secret,
    PlainValidator(_secret),
    PlainSerializer(str),
    _schema(type="string", minLength=1, writeOnly=True),
]
Flag: TypeAlias = Annotated[bool, PlainValidator(_boolean), _schema(type="boolean")]
Number: TypeAlias = Annotated[int, PlainValidator(_number), _schema(type="integer", minimum=0)]
Duration: TypeAlias = Annotated[
    float,
    PlainValidator(_quantity(units.duration, "5s")),
    PlainSerializer(units.show_duration),
    _schema(type="string", pattern=DURATION),
]
Rate: TypeAlias = Annotated[
    units.Rate,
    PlainValidator(_rate),
    PlainSerializer(units.show_rate),
    _schema(type="string", pattern=RATE),
]
Size: TypeAlias = Annotated[
    int,
    PlainValidator(_quantity(units.size, "64MiB")),
    PlainSerializer(units.show_size),
    _schema(type="string", pattern=SIZE),
]
TopicName: TypeAlias = Annotated[
    str, _checked(_topic), _schema(type="string", pattern=f"^{_TOPIC.pattern}$")
]
TopicGlob: TypeAlias = Annotated[
    str, _checked(_glob), _schema(type="string", pattern=f"^{_GLOB.pattern}$")
]
Pointer: TypeAlias = Annotated[str, _checked(_pointer), _schema(type="string", pattern="^/")]
File: TypeAlias = Annotated[
    Path, PlainValidator(_file), PlainSerializer(str), _schema(type="string", minLength=1)
]
History: TypeAlias = Annotated[
    Literal["none", "all"] | float,
    PlainValidator(_history),
    PlainSerializer(lambda value: value if isinstance(value, str) else units.show_duration(value)),
    WithJsonSchema({"anyOf": [{"enum": ["none", "all"]}, {"type": "string", "pattern": DURATION}]}),
]
