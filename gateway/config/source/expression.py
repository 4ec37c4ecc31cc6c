"""Parse the `${...}` inside a text: one grammar for substitution and for templates.

`${env.NAME}`, `${env.NAME:default}` and `${file:path}` are replaced when the file is loaded;
`${params.x}`, `${query.x}`, `${guarded['g'].identity}`, `${idempotencyKey}`, `${correlationId}` and
`${message.value.x}` when a request or a record is handled. `${$}` is a dollar sign, for a text that
needs a literal `${`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
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
