"""Parse durations, sizes, shares and rates: a number and a unit, with nothing implied.

`5s`, `250ms`, `1.5h`, `7d` become float seconds (to the microsecond); `64MiB`, `500kB` become int
bytes; `1%` becomes 0.01; `20/s` a count per time. A number without a unit is refused, because its
meaning would have to be guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from .substitution import find_closest

DURATION_UNITS: Mapping[str, Decimal] = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
SIZE_UNITS: Mapping[str, Decimal] = {
    "B": Decimal(1),
    "kB": Decimal(1000),
    "MB": Decimal(1000**2),
    "GB": Decimal(1000**3),
    "KiB": Decimal(1024),
    "MiB": Decimal(1024**2),
    "GiB": Decimal(1024**3),
    "TiB": Decimal(1024**4),
}
MAX_DURATION_S = 10_000 * 86_400  # about 27 years
MAX_SIZE_BYTES = 1024**5  # 1 PiB

SHARE_UNITS: Mapping[str, Decimal] = {"%": Decimal("0.01")}
RATE_UNITS: Mapping[str, Decimal] = {unit: DURATION_UNITS[unit] for unit in ("s", "m", "h")}
MAX_RATE_COUNT = 10**7  # in one period of a rate

_RATE = re.compile(r"([0-9]{1,18})\s*/\s*([^\s0-9./]+)")
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,15})?)(\s*)([^\s0-9.]*)")
_UNIT_SPELLINGS: Mapping[str, str] = {
    "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "min": "m", "mins": "m", "minute": "m", "minutes": "m",
    "hr": "h", "hour": "h", "hours": "h", "day": "d", "days": "d",
    "millis": "ms", "millisecond": "ms", "milliseconds": "ms", "msec": "ms",
    "byte": "B", "bytes": "B", "k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB",
    "ki": "KiB", "mi": "MiB", "gi": "GiB", "ti": "TiB",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rate:
    """A count in each period of `seconds`."""

    count: int
    seconds: float

    @property
    def interval(self) -> float:
        """The average time between two events, in seconds."""
        return self.seconds / self.count


def parse_duration(text: str) -> float:
    """Return the seconds of a duration, to microseconds; raise ValueError saying what to write."""
    seconds = _parse_quantity(text, DURATION_UNITS, "duration", "5s")
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{text!r} is too long; the longest duration is 10000d")
    return float(round(seconds, 6))


def parse_size(text: str) -> int:
    count = _parse_quantity(text, SIZE_UNITS, "size", "64MiB")
    if count != int(count):
        raise ValueError(f"{text!r} is not a whole number of bytes; write such as 64MiB")
    if count > MAX_SIZE_BYTES:
        raise ValueError(f"{text!r} is too large; the largest size is 1024TiB")
    return int(count)


def parse_share(text: str) -> float:
    part = _parse_quantity(text, SHARE_UNITS, "share", "1%")
    if part > 1:
        raise ValueError(f"{text!r} is more than all; the largest share is 100%")
    return float(part)


def parse_rate(text: str) -> Rate:
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a rate; write a number and a time, such as 20/s")
    count, unit = int(match[1]), match[2]
    if text != f"{match[1]}/{unit}" or unit not in RATE_UNITS:
        meant = _find_unit(unit, RATE_UNITS)
        hint = (
            f"did you mean '{count}/{meant}'?" if meant else f"use one of {', '.join(RATE_UNITS)}"
        )
        raise ValueError(f"{text!r} is not a rate; {hint}")
    if not 1 <= count <= MAX_RATE_COUNT:
        raise ValueError(f"{text!r} is out of range; use 1/{unit} to {MAX_RATE_COUNT}/{unit}")
    return Rate(count, float(RATE_UNITS[unit]))


def format_rate(rate: Rate) -> str:
    unit = next(name for name, seconds in RATE_UNITS.items() if seconds == rate.seconds)
    return f"{rate.count}/{unit}"


def format_share(share: float) -> str:
    return f"{(Decimal(str(share)) * 100).normalize():f}%"


def format_duration(seconds: float) -> str:
    micros = round(seconds * 1_000_000)
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(micros, int(DURATION_UNITS[unit] * 1_000_000))
        if not rest and (count or unit == "s"):
            return f"{count}{unit}"
    return f"{Decimal(micros) / 1000:f}ms"


def format_size(count: int) -> str:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        whole, rest = divmod(count, int(SIZE_UNITS[unit]))
        if whole and not rest:
            return f"{whole}{unit}"
    return f"{count}B"


def _parse_quantity(text: str, units: Mapping[str, Decimal], noun: str, example: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a {noun}; write a number and a unit, such as {example}")
    number, space, unit = match.groups()
    if unit in units and not space:
        return Decimal(number) * units[unit]
    if not unit:
        # As other programs have them: whole milliseconds.
        is_milliseconds = noun == "duration" and Decimal(number) >= 100
        hint = f"did you mean '{text}ms'?" if is_milliseconds else "write a number and a unit"
        hint += "" if is_milliseconds else f", such as {example}"
        raise ValueError(f"{text!r} has no unit; {hint}")
    if meant := _find_unit(unit, units):
        raise ValueError(f"{text!r} is not a {noun}; did you mean '{number}{meant}'?")
    raise ValueError(f"{unit!r} is not a unit of {noun}; use one of {', '.join(units)}")


def _find_unit(unit: str, units: Mapping[str, Decimal]) -> str | None:
    """Return the closest unit: another spelling, another case, or a typo."""
    if unit in units:
        return unit
    if (known_unit := _UNIT_SPELLINGS.get(unit.lower())) in units:
        return known_unit
    folded = {known.lower(): known for known in units}
    closest = find_closest(unit.lower(), folded, cutoff=0.5)
    return folded[closest] if closest else None
