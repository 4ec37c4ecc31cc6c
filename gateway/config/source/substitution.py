"""`${env.NAME}`, `${env.NAME:default}` and `${file:path}`, settled while loading.

What was put in is never put in again (a variable that holds `${...}` is text), and a
substituted text remembers how it was written, so that a message shows the expression
and not the secret behind it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from .expression import GIVEN, Expression, Part, join, nearest, split

LARGEST_FILE = 1024 * 1024  # bytes; a secret or a key set, not a data set

NOTHING: Mapping[str, str] = {}

_NAME = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)(?::(.*))?", re.DOTALL)


class Substituted(str):
    """A text whose `${env...}` and `${file...}` are settled.

    source: as it stands in the file. parts: the templates that are left, and literals.
    """

    source: str
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, source: str, parts: tuple[Part, ...]) -> Substituted:
        made = cls("".join(str(part) for part in parts))
        made.source, made.parts = source, parts
        return made

    @property
    def settled(self) -> bool:
        """Nothing is left for later."""
        return not any(isinstance(part, Expression) for part in self.parts)


class Unsettled(str):
    """A text whose substitution failed: told already, and nothing follows from it."""


def substitute(
    text: str, *, environ: Mapping[str, str], base: Path, given: Mapping[str, str] = NOTHING
) -> Substituted:
    """Settle a text; `base` is the folder of the file it stands in. given: values of a file of
    their own. Raises ValueError."""
    settled = (
        part if isinstance(part, str) else _settle(part, environ, base, given)
        for part in split(text)
    )
    return Substituted.of(text, join(settled))


def parts_of(text: str) -> tuple[Part, ...]:
    """The parts of a text that may have been substituted already. Raises ValueError."""
    return text.parts if isinstance(text, Substituted) else split(text)


def shown(value: object) -> str:
    """A value for a message: what was written, not what was put in, and not too long."""
    text = repr(value.source if isinstance(value, Substituted) else value)
    text = re.sub(r":[^\s/@]+@", ":***@", text)  # user:password@host, in the wrong place
    return text if len(text) <= 60 else f"{text[:57]}..."


def _settle(
    expression: Expression, environ: Mapping[str, str], base: Path, given: Mapping[str, str]
) -> Part:
    if expression.root in GIVEN:
        return _given(expression, given)
    if expression.root == "env":
        return _variable(expression, environ)
    if expression.root == "file":
        return _file(expression, base)
    return expression


def _variable(expression: Expression, environ: Mapping[str, str]) -> str:
    match = _NAME.fullmatch(expression.text)
    if match is None:
        raise ValueError(
            f"'{expression}' is malformed; write ${{env.NAME}} or ${{env.NAME:default}}"
        )
    name, default = match.groups()
    value = environ.get(name, default)
    if value is None:
        near = nearest(name, environ) if environ else ""
        hint = near if near.startswith("did you") else f"set it, or write ${{env.{name}:default}}"
        raise ValueError(f"environment variable '{name}' is not set; {hint}")
    return value


def _given(expression: Expression, given: Mapping[str, str]) -> str:
    name, colon, default = expression.text.partition(":")
    if name in given:
        return given[name]
    if not colon:
        near = nearest(name, given) if given else ""
        hint = near if near.startswith("did you") else f"write ${{{name}:default}}, or --values"
        raise ValueError(f"'{name}' has no value; {hint}")
    return default


def _file(expression: Expression, base: Path) -> str:
    """The text of a file, without the newline at its end."""
    _, colon, path = expression.text.partition(":")
    if not colon or not path.strip():
        raise ValueError(f"'{expression}' is malformed; write ${{file:path}}")
    try:
        file = base / path.strip()
        if not file.is_file():
            raise ValueError(f"file '{path}' does not exist; paths start at {base or '.'}")
        if file.stat().st_size > LARGEST_FILE:
            raise ValueError(f"file '{path}' is larger than 1MiB; is it the right one?")
        return file.read_text("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"file '{path}' is not UTF-8; save it as UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"file '{path}' cannot be read ({error.strerror}); check it") from None
