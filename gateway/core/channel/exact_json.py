"""JSON whose numbers are kept as they are written.

orjson, which reads values everywhere else, makes 64-bit integers and doubles of numbers:
1.50 becomes 1.5 and 18446744073709551617 a double. Where the digits count, the value is
read again with Python's own parser, which hands each number's text to a function: 3.3 us for
200 bytes, orjson 0.5 us, so only those pay for it who met such a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

Number: TypeAlias = int | Decimal

_NUMBER_PATTERN = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_MAX_INT_DIGITS = 40  # digits up to which a number without a fraction is kept as an int


def parse_exact(data: bytes, convert: Callable[[str], Any] = str) -> Any:
    """Strict JSON that orjson has read before, each number as `number` of its text.

    Raises RecursionError for what is nested about 1,000 levels deep: orjson reads up to 1,024.
    """
    return json.loads(data, parse_int=convert, parse_float=convert)


def parse_number(text: str) -> Decimal | None:
    """The number that a text is by the grammar of JSON (RFC 8259 6), exactly; None: it is none."""
    if not _NUMBER_PATTERN.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return None


def normalize_number(number: Number) -> Number:
    """The same number with the `repr` that all equal ones have: 10 for 10.0 and 1e1."""
    if not number:
        return 0
    number = Decimal(number)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    kept = len(digits)
    while digits[kept - 1] == 0:
        kept -= 1
    exponent += len(digits) - kept
    if exponent >= 0 and number.adjusted() < _MAX_INT_DIGITS:
        return int(number)
    return Decimal((sign, digits[:kept], exponent))
