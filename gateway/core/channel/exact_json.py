"""Read JSON as browsers do, and JSON whose numbers are kept as they are written.

JSON is here what `JSON.parse` reads (`parse_json`). orjson refuses some of that: escaped halves of
surrogate pairs, as JavaScript writes a text that was cut within an emoji, and numbers that no
double can hold. A byte order mark is skipped, as `Response.json()` does. NaN, UTF-16 and comments
are no JSON.

orjson, which reads values everywhere, turns numbers into 64-bit integers and doubles: 1.50 becomes
1.5 and 18446744073709551617 a double. Where the digits matter, the value is read again with
Python's own parser, which hands the text of each number to a function. That takes 3.3 us for 200
bytes where orjson takes 0.5 us, so it is done only for values with such a number.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, TypeAlias

import orjson

Number: TypeAlias = int | Decimal

NUMBER_PATTERN = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?"
_NUMBER = re.compile(NUMBER_PATTERN)
_HEX = "[0-9a-fA-F]"
_HALF_OR_ESCAPE = re.compile(
    rf"\\u[dD][89abAB]{_HEX}{_HEX}\\u[dD][c-fC-F]{_HEX}{_HEX}"
    rf"|\\(?P<half>u[dD][89a-fA-F]{_HEX}{_HEX})|\\.",
    re.DOTALL,
)
# All digits of a double are at most 1,100. Each range took 5 ms to read a text of 1 MB.
MAX_NUMBER_CHARS = 1_200
_MAX_INT_DIGITS = 40  # digits up to which a number without a fraction is kept as an int


def parse_json(data: bytes) -> Any:
    """Parse JSON in UTF-8, or raise JSONDecodeError; halves of surrogate pairs become U+FFFD."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        # Other text, which is no JSON for a browser either, is not parsed twice.
        if b"\\u" not in data and data[:3] != BOM_UTF8 and "infinity" not in exc.msg:
            raise
        try:
            return json.loads(
                _HALF_OR_ESCAPE.sub(_replace_half, data.decode("utf-8-sig")),
                parse_int=_parse_int,
                parse_constant=_refuse_constant,
            )
        except (ValueError, RecursionError):
            raise exc from None


def _replace_half(match: re.Match[str]) -> str:
    return r"\ufffd" if match["half"] else match[0]


def _parse_int(text: str) -> int | float:
    return int(text) if len(text) < 19 else float(text)  # a double for more than 64 bits


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def parse_exact(data: bytes, convert: Callable[[str], Any] = str) -> Any:
    """Parse JSON that `parse_json` has accepted, with numbers converted from their text.

    RecursionError is raised if the value is nested about 1,000 levels deep; orjson accepts 1,024.
    """
    return json.loads(data, parse_int=convert, parse_float=convert)


# Of each record the ranges of many clients look at few texts.
@lru_cache(maxsize=64)
def parse_number(text: str) -> Decimal | None:
    """Return exactly the number that a text is in JSON's grammar (RFC 8259 6).

    None if it is none, or is longer than MAX_NUMBER_CHARS.
    """
    if len(text) > MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return None


def normalize_number(number: Number) -> Number:
    """Return the same number in the one form that all equal numbers have: 10 for 10.0 and 1e1."""
    if not number:
        return 0
    number = Decimal(number)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    # Trailing zeros go into the exponent. Not Decimal.normalize(): it rounds to 28 digits.
    kept = len(digits)
    while digits[kept - 1] == 0:
        kept -= 1
    exponent += len(digits) - kept
    if exponent >= 0 and number.adjusted() < _MAX_INT_DIGITS:
        return int(number)  # bounded: 1e999999999 as an int would take all memory
    return Decimal((sign, digits[:kept], exponent))
