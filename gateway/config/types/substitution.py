"""Parse the `${...}` inside a text, and substitute those that are known while loading.

There is one grammar for substitution and for templates. `${env.NAME}`, `${env.NAME:default}` and
`${file:path}` are replaced when the file is loaded; `${params.x}`, `${query.x}`,
`${guarded['g'].identity}`, `${idempotencyKey}`, `${correlationId}` and `${message.value.x}` when a
request or a record is handled. `${$}` is a dollar sign, for a text that needs a literal `${`.

A substituted value is never substituted again (a variable that holds `${...}` is text). A
substituted text remembers its source, so that a message shows the expression and not the secret
behind it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOTS = (
    *("env", "file", "params", "query", "guarded", "message"),
    *("idempotencyKey", "correlationId"),
)

VALUES_FILE_ROOTS = ("kafka-producer", "kafka-consumer", "health", "server")
"""Roots of values that a values file sets; see `values_file`."""

MAX_COMPARED_PAIRS = 50_000
"""The most pairs of characters that `find_closest` compares: about 8 ms."""

_EXPRESSION = re.compile(r"\$\{([^{}]*)(\}?)")
_ROOT = re.compile(r"[A-Za-z_$-]*")


class Expression(NamedTuple):
    """The text between `${` and `}`."""

    text: str

    @property
    def root(self) -> str:
        """The word before the first dot, colon or bracket."""
        match = _ROOT.match(self.text)
        return match.group() if match else ""

    def __str__(self) -> str:
        return f"${{{self.text}}}"


ExpressionPart: TypeAlias = str | Expression


def parse_expressions(text: str) -> tuple[ExpressionPart, ...]:
    """Split a text at its expressions; raise ValueError for one that is open or unknown."""
    parts: list[ExpressionPart] = []
    at = 0
    for match in _EXPRESSION.finditer(text):
        if not match.group(2):
            raise ValueError(f"'{match.group()[:40]}' is not closed; add '}}' or write ${{$}}{{")
        parts += text[at : match.start()], _check_root(Expression(match.group(1)))
        at = match.end()
    return merge_literals([*parts, text[at:]])


def merge_literals(parts: Iterable[ExpressionPart]) -> tuple[ExpressionPart, ...]:
    """Return the parts with adjacent literals joined and empty ones dropped."""
    joined: list[ExpressionPart] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return tuple(joined)


def format_parts(parts: Iterable[ExpressionPart]) -> str:
    """Return the text that `parse_expressions` reads as these parts."""
    return "".join(
        part.replace("$", "${$}") if isinstance(part, str) else str(part) for part in parts
    )


def escape(text: str) -> str:
    """Return a text that is read back as the given one, whatever it holds."""
    return text.replace("${", "${$}{")


def suggest(word: str, candidates: Iterable[str], fallback: str = "remove it") -> str:
    """Return `did you mean 'x'?`, else the candidates, or `fallback` if there are none."""
    candidates = sorted(candidates)
    folded = {name.lower(): name for name in candidates}
    if close := find_closest(word.lower(), folded):
        return f"did you mean '{folded[close]}'?"
    if not candidates:
        return fallback
    listed = ", ".join(candidates[:12]) + (", ..." if len(candidates) > 12 else "")
    return f"use {listed}" if len(candidates) == 1 else f"use one of {listed}"


def find_closest(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the candidate that is most similar to a word, None if none is close.

    A client may have sent the word. difflib looks at each of its characters (0.15 s for 1 MB) and
    then compares it with each candidate. So only candidates of a similar length are compared, the
    nearest in length first, until `MAX_COMPARED_PAIRS` is reached.
    """
    size = len(word)
    # difflib's ratio is at most 2 * min(lengths) / sum(lengths): other candidates cannot match.
    near = [name for name in candidates if cutoff * (len(name) + size) <= 2 * min(len(name), size)]
    near.sort(key=lambda name: abs(len(name) - size))
    compared, budget = [], MAX_COMPARED_PAIRS
    for name in near:
        budget -= size * len(name)
        if budget < 0:
            break
        compared.append(name)
    matches = difflib.get_close_matches(word, compared, n=1, cutoff=cutoff) if compared else ()
    return matches[0] if matches else None


def _check_root(expression: Expression) -> ExpressionPart:
    if expression.text == "$":
        return "$"
    if expression.root in ROOTS or expression.root in VALUES_FILE_ROOTS:
        return expression
    if re.fullmatch(r"[A-Z][A-Z0-9_]*", expression.text):
        raise ValueError(f"'{expression}' is unknown; did you mean '${{env.{expression.text}}}'?")
    raise ValueError(f"'{expression}' is unknown; {suggest(expression.root, ROOTS)}")


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
