"""Substitute `${env.NAME}`, `${env.NAME:default}` and `${file:path}` while loading.

A substituted value is never substituted again (a variable that holds `${...}` is text). A
substituted text remembers its source, so that a message shows the expression and not the secret
behind it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from .expression import (
    VALUES_FILE_ROOTS,
    Expression,
    ExpressionPart,
    merge_literals,
    parse_expressions,
    suggest,
)

MAX_FILE_BYTES = 1024 * 1024  # it holds a secret or a key set, not a data set

NO_VALUES: Mapping[str, str] = {}

_ENV_EXPRESSION = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)(?::(.*))?", re.DOTALL)


class SubstitutedText(str):
    """A text whose `${env...}` and `${file...}` were substituted.

    Attributes:
        source: The text as it stands in the file.
        parts: Its literals and the expressions that requests or records fill in.
    """

    source: str
    parts: tuple[ExpressionPart, ...]

    @classmethod
    def from_parts(cls, source: str, parts: tuple[ExpressionPart, ...]) -> SubstitutedText:
        text = cls("".join(str(part) for part in parts))
        text.source, text.parts = source, parts
        return text

    @property
    def is_resolved(self) -> bool:
        """Whether no expression is left for requests or records."""
        return not any(isinstance(part, Expression) for part in self.parts)


class UnresolvedText(str):
    """A text whose substitution failed and was reported; other checks skip it."""


def substitute(
    text: str, *, environ: Mapping[str, str], base: Path, values: Mapping[str, str] = NO_VALUES
) -> SubstitutedText:
    """Substitute the expressions of a text that are known while loading.

    Args:
        base: The folder of the file that holds the text, where relative paths start.

    Raises:
        ValueError: A variable, file or value is missing or an expression is malformed.
    """
    resolved = (
        part if isinstance(part, str) else _resolve(part, environ, base, values)
        for part in parse_expressions(text)
    )
    return SubstitutedText.from_parts(text, merge_literals(resolved))


def parse_parts(text: str) -> tuple[ExpressionPart, ...]:
    """Return the parts of a text that may have been substituted; raise ValueError if malformed."""
    return text.parts if isinstance(text, SubstitutedText) else parse_expressions(text)


def safe_repr(value: object) -> str:
    """Return a value for a message: as written, without secrets, at most 60 characters long."""
    text = str(value).lower() if isinstance(value, bool) else repr(_restore_sources(value))
    text = re.sub(r":[^\s/@]+@", ":***@", text)  # user:password@host, in the wrong place
    return text if len(text) <= 60 else f"{text[:57]}..."


def describe_not_text(value: object, expected: str = "text") -> str:
    hint = "put it in quotes"
    if isinstance(value, (list, tuple, Mapping)):
        hint = "write a single one, without brackets"
    return f"expects {expected}, not {'null' if value is None else safe_repr(value)}; {hint}"


def _restore_sources(value: object) -> object:
    if isinstance(value, SubstitutedText):
        return value.source
    if isinstance(value, Mapping):
        return {key: _restore_sources(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_restore_sources(item) for item in value]
    return value


def _resolve(
    expression: Expression, environ: Mapping[str, str], base: Path, values: Mapping[str, str]
) -> ExpressionPart:
    if expression.root in VALUES_FILE_ROOTS:
        return _resolve_value(expression, values)
    if expression.root == "env":
        return _resolve_variable(expression, environ)
    if expression.root == "file":
        return _read_file(expression, base)
    return expression


def _resolve_variable(expression: Expression, environ: Mapping[str, str]) -> str:
    match = _ENV_EXPRESSION.fullmatch(expression.text)
    if match is None:
        raise ValueError(
            f"'{expression}' is malformed; write ${{env.NAME}} or ${{env.NAME:default}}"
        )
    name, default = match.groups()
    value = environ.get(name, default)
    if value is None:
        near = suggest(name, environ) if environ else ""
        hint = near if near.startswith("did you") else f"set it, or write ${{env.{name}:default}}"
        raise ValueError(f"environment variable '{name}' is not set; {hint}")
    return value


def _resolve_value(expression: Expression, values: Mapping[str, str]) -> str:
    name, colon, default = expression.text.partition(":")
    if name in values:
        return values[name]
    if not colon:
        near = suggest(name, values) if values else ""
        hint = near if near.startswith("did you") else f"write ${{{name}:default}}, or --values"
        raise ValueError(f"'{name}' has no value; {hint}")
    return default


def _read_file(expression: Expression, base: Path) -> str:
    _, colon, path = expression.text.partition(":")
    if not colon or not path.strip():
        raise ValueError(f"'{expression}' is malformed; write ${{file:path}}")
    try:
        file = base / path.strip()
        if not file.is_file():
            raise ValueError(f"file '{path}' does not exist; paths start at {base or '.'}")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"file '{path}' is larger than 1MiB; is it the right one?")
        return file.read_text("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"file '{path}' is not UTF-8; save it as UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"file '{path}' cannot be read ({error.strerror}); check it") from None
