"""The `${...}` inside a text: one grammar for substitution and for templates.

`${env.NAME}`, `${env.NAME:default}` and `${file:path}` are settled when the file is
loaded; `${params.x}`, `${query.x}`, `${guarded['g'].identity}`, `${idempotencyKey}`,
`${correlationId}` and `${message.value.x}` when a client or a record comes. `${$}` is a dollar
sign, for a text that needs `${`.
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
"""Of values in a file of their own; see `values`."""

MAX_COMPARED_PAIRS = 50_000
"""Pairs of characters that `closest` compares at most: some 8 ms."""

_EXPRESSION = re.compile(r"\$\{([^{}]*)(\}?)")
_ROOT = re.compile(r"[A-Za-z_$-]*")


class Expression(NamedTuple):
    """What stands between `${` and `}`."""

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
    """The literal pieces and the expressions of a text, in order.

    Raises ValueError where a `${` is not closed or starts with an unknown word.
    """
    parts: list[ExpressionPart] = []
    at = 0
    for match in _EXPRESSION.finditer(text):
        if not match.group(2):
            raise ValueError(f"'{match.group()[:40]}' is not closed; add '}}' or write ${{$}}{{")
        parts += text[at : match.start()], _check_root(Expression(match.group(1)))
        at = match.end()
    return merge_literals([*parts, text[at:]])


def merge_literals(parts: Iterable[ExpressionPart]) -> tuple[ExpressionPart, ...]:
    """The same parts with neighbouring literals made one and empty ones dropped."""
    joined: list[ExpressionPart] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return tuple(joined)


def format_parts(parts: Iterable[ExpressionPart]) -> str:
    """The text that `split` reads as these parts."""
    return "".join(
        part.replace("$", "${$}") if isinstance(part, str) else str(part) for part in parts
    )


def escape(text: str) -> str:
    """A text that is read back as itself, whatever it holds."""
    return text.replace("${", "${$}{")


def suggest(word: str, candidates: Iterable[str], fallback: str = "remove it") -> str:
    """`did you mean 'x'?` or, when nothing is near, the words there are, or what else to do."""
    candidates = sorted(candidates)
    folded = {name.lower(): name for name in candidates}
    if close := find_closest(word.lower(), folded):
        return f"did you mean '{folded[close]}'?"
    if not candidates:
        return fallback
    listed = ", ".join(candidates[:12]) + (", ..." if len(candidates) > 12 else "")
    return f"use {listed}" if len(candidates) == 1 else f"use one of {listed}"


def find_closest(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that is most like another, or None if none is near.

    Any client's text may be the word. difflib looks at each of its characters (0.15 s for 1 MB)
    and then compares each with those of each known word, so it is given only those whose lengths
    let them be near, the nearest in length first, and of these no more than `MAX_COMPARED`.

    Args:
        word: A text of any length.
        known: The words there are.
        cutoff: How alike they must be: difflib's ratio, 0 to 1.
    """
    size = len(word)
    near = [each for each in candidates if cutoff * (len(each) + size) <= 2 * min(len(each), size)]
    near.sort(key=lambda each: abs(len(each) - size))
    compared, left = [], MAX_COMPARED_PAIRS
    for each in near:
        left -= size * len(each)
        if left < 0:
            break
        compared.append(each)
    found = difflib.get_close_matches(word, compared, n=1, cutoff=cutoff) if compared else ()
    return found[0] if found else None


def _check_root(expression: Expression) -> ExpressionPart:
    if expression.text == "$":
        return "$"
    if expression.root in ROOTS or expression.root in VALUES_FILE_ROOTS:
        return expression
    if re.fullmatch(r"[A-Z][A-Z0-9_]*", expression.text):
        raise ValueError(f"'{expression}' is unknown; did you mean '${{env.{expression.text}}}'?")
    raise ValueError(f"'{expression}' is unknown; {suggest(expression.root, ROOTS)}")
