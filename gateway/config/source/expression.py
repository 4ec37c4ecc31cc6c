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

GIVEN = ("kafka-producer", "kafka-consumer", "health", "server")
"""Of values in a file of their own; see `values`."""

MAX_COMPARED = 50_000
"""Pairs of characters that `closest` compares at most: some 8 ms."""

_OPEN = re.compile(r"\$\{([^{}]*)(\}?)")
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


Part: TypeAlias = str | Expression


def split(text: str) -> tuple[Part, ...]:
    """The literal pieces and the expressions of a text, in order.

    Raises ValueError where a `${` is not closed or starts with an unknown word.
    """
    parts: list[Part] = []
    at = 0
    for match in _OPEN.finditer(text):
        if not match.group(2):
            raise ValueError(f"'{match.group()[:40]}' is not closed; add '}}' or write ${{$}}{{")
        parts += text[at : match.start()], _known(Expression(match.group(1)))
        at = match.end()
    return join([*parts, text[at:]])


def join(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The same parts with neighbouring literals made one and empty ones dropped."""
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return tuple(joined)


def show(parts: Iterable[Part]) -> str:
    """The text that `split` reads as these parts."""
    return "".join(
        part.replace("$", "${$}") if isinstance(part, str) else str(part) for part in parts
    )


def escape(text: str) -> str:
    """A text that is read back as itself, whatever it holds."""
    return text.replace("${", "${$}{")


def nearest(word: str, known: Iterable[str], otherwise: str = "remove it") -> str:
    """`did you mean 'x'?` or, when nothing is near, the words there are, or what else to do."""
    known = sorted(known)
    folded = {name.lower(): name for name in known}
    if close := closest(word.lower(), folded):
        return f"did you mean '{folded[close]}'?"
    if not known:
        return otherwise
    listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"use {listed}" if len(known) == 1 else f"use one of {listed}"


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
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
    near = [each for each in known if cutoff * (len(each) + size) <= 2 * min(len(each), size)]
    near.sort(key=lambda each: abs(len(each) - size))
    compared, left = [], MAX_COMPARED
    for each in near:
        left -= size * len(each)
        if left < 0:
            break
        compared.append(each)
    found = difflib.get_close_matches(word, compared, n=1, cutoff=cutoff) if compared else ()
    return found[0] if found else None


def _known(expression: Expression) -> Part:
    if expression.text == "$":
        return "$"
    if expression.root in ROOTS or expression.root in GIVEN:
        return expression
    if re.fullmatch(r"[A-Z][A-Z0-9_]*", expression.text):
        raise ValueError(f"'{expression}' is unknown; did you mean '${{env.{expression.text}}}'?")
    raise ValueError(f"'{expression}' is unknown; {nearest(expression.root, ROOTS)}")
