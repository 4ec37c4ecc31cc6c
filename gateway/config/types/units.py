"""Durations, sizes, shares and rates as people write them: a number and a unit, nothing implied.

`5s`, `250ms`, `1.5h`, `7d` become float seconds (to the microsecond); `64MiB`, `500kB`
become int bytes; `1%` becomes 0.01; `20/s` so many in so much time. A number without a unit is
refused: 30 what?
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from gateway.config.source.expression import closest

DURATIONS: Mapping[str, Decimal] = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
SIZES: Mapping[str, Decimal] = {
    "B": Decimal(1),
    "kB": Decimal(1000),
    "MB": Decimal(1000**2),
    "GB": Decimal(1000**3),
    "KiB": Decimal(1024),
    "MiB": Decimal(1024**2),
    "GiB": Decimal(1024**3),
    "TiB": Decimal(1024**4),
}
LONGEST = 10_000 * 86_400  # seconds: about 27 years
LARGEST = 1024**5  # bytes: 1 PiB

SHARES: Mapping[str, Decimal] = {"%": Decimal("0.01")}
TIMES: Mapping[str, Decimal] = {unit: DURATIONS[unit] for unit in ("s", "m", "h")}
MOST = 10**7  # in one time of a rate

_RATE = re.compile(r"([0-9]{1,18})\s*/\s*([^\s0-9./]+)")
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,15})?)(\s*)([^\s0-9.]*)")
_WORDS: Mapping[str, str] = {
    "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "min": "m", "mins": "m", "minute": "m", "minutes": "m",
    "hr": "h", "hour": "h", "hours": "h", "day": "d", "days": "d",
    "millis": "ms", "millisecond": "ms", "milliseconds": "ms", "msec": "ms",
    "byte": "B", "bytes": "B", "k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB",
    "ki": "KiB", "mi": "MiB", "gi": "GiB", "ti": "TiB",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in each span of so many seconds."""

    count: int
    seconds: float

    @property
    def interval(self) -> float:
        """Seconds from one to the next, on the average."""
        return self.seconds / self.count


def duration(text: str) -> float:
    """Seconds, rounded to microseconds. Raises ValueError saying what to write."""
    seconds = round(_quantity(text, DURATIONS, "duration", "5s"), 6)
    if seconds > LONGEST:
        raise ValueError(f"{text!r} is too long; the longest duration is 10000d")
    return float(seconds)


def size(text: str) -> int:
    """Bytes. Raises ValueError saying what to write."""
    count = _quantity(text, SIZES, "size", "64MiB")
    if count != int(count):
        raise ValueError(f"{text!r} is not a whole number of bytes; write such as 64MiB")
    if count > LARGEST:
        raise ValueError(f"{text!r} is too large; the largest size is 1024TiB")
    return int(count)


def share(text: str) -> float:
    """A share of 1. Raises ValueError saying what to write."""
    part = _quantity(text, SHARES, "share", "1%")
    if part > 1:
        raise ValueError(f"{text!r} is more than all; the largest share is 100%")
    return float(part)


def rate(text: str) -> Rate:
    """Raises ValueError saying what to write."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a rate; write a number and a time, such as 20/s")
    count, unit = int(match[1]), match[2]
    if text != f"{match[1]}/{unit}" or unit not in TIMES:
        meant = _nearest(unit, TIMES)
        hint = f"did you mean '{count}/{meant}'?" if meant else f"use one of {', '.join(TIMES)}"
        raise ValueError(f"{text!r} is not a rate; {hint}")
    if not 1 <= count <= MOST:
        raise ValueError(f"{text!r} is out of range; use 1/{unit} to {MOST}/{unit}")
    return Rate(count, float(TIMES[unit]))


def show_rate(rate: Rate) -> str:
    """The text that `rate` reads as this."""
    unit = next(name for name, seconds in TIMES.items() if seconds == rate.seconds)
    return f"{rate.count}/{unit}"


def show_share(part: float) -> str:
    """The shortest text that `share` reads as this."""
    return f"{(Decimal(str(part)) * 100).normalize():f}%"


def show_duration(seconds: float) -> str:
    """The shortest text that `duration` reads as these seconds."""
    micros = round(seconds * 1_000_000)
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(micros, int(DURATIONS[unit] * 1_000_000))
        if not rest and (count or unit == "s"):
            return f"{count}{unit}"
    return f"{Decimal(micros) / 1000:f}ms"


def show_size(count: int) -> str:
    """The shortest text that `size` reads as this many bytes."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        whole, rest = divmod(count, int(SIZES[unit]))
        if whole and not rest:
            return f"{whole}{unit}"
    return f"{count}B"


def _quantity(text: str, units: Mapping[str, Decimal], noun: str, example: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a {noun}; write a number and a unit, such as {example}")
    number, space, unit = match.groups()
    if unit in units and not space:
        return Decimal(number) * units[unit]
    if not unit:
        raise ValueError(f"{text!r} has no unit; write a number and a unit, such as {example}")
    if meant := _nearest(unit, units):
        raise ValueError(f"{text!r} is not a {noun}; did you mean '{number}{meant}'?")
    raise ValueError(f"{unit!r} is not a unit of {noun}; use one of {', '.join(units)}")


def _nearest(unit: str, units: Mapping[str, Decimal]) -> str | None:
    """The unit that was meant: another spelling, another case, or a slip of the finger."""
    if unit in units:
        return unit
    if (word := _WORDS.get(unit.lower())) in units:
        return word
    folded = {known.lower(): known for known in units}
    close = closest(unit.lower(), folded, cutoff=0.5)
    return folded[close] if close else None
