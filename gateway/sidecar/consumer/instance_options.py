"""How an instance is to be: what POST /consumers says, in the contract's words or in Confluent's.

A name means the same in camel case, with underscores and with dots.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from re import _parser as regular  # type: ignore[attr-defined]
from typing import Any, Literal, TypeAlias

from gateway.config.sections.sidecar import Consumer
from gateway.errors import FormatError
from gateway.formats.codec import Format
from gateway.sidecar.http.spec import wrong

Reset: TypeAlias = Literal["latest", "earliest", "none"]
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]

NAME = re.compile(r"[A-Za-z0-9._~-]{1,200}")
LONGEST_PATTERN = 200
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
REPETITIONS = 3
LONGEST_TOPIC = 249
MAX_WAYS = (LONGEST_TOPIC + 1) ** REPETITIONS  # in which a pattern may be tried on a name
LONGEST_WAIT = 300_000  # ms: longer than what stands between client and sidecar lets them wait

_NAMES = {
    "id": "id",
    "name": "name",
    "format": "format",
    "keyformat": "key_format",
    "valueformat": "value_format",
    "autooffsetreset": "reset",
    "autocommitenable": "auto_commit",
    "enableautocommit": "auto_commit",
    "responseminbytes": "min_bytes",
    "fetchminbytes": "min_bytes",
    "requestwaitms": "wait",
    "consumerrequesttimeoutms": "wait",
    "isolationlevel": "isolation",
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """key_format, value_format, format: as named, None for what is not. wait in seconds.

    name: empty where it is the sidecar's to make.
    """

    name: str
    format: Format | None
    key_format: Format | None
    value_format: Format | None
    reset: Reset
    isolation: Isolation
    auto_commit: bool
    min_bytes: int
    wait: float

    @classmethod
    def of(cls, body: Mapping[str, Any], settings: Consumer) -> Wishes:
        """Raises Refusal 400 that names the field."""
        given: dict[str, tuple[str, Any]] = {}
        for field, value in body.items():
            known = _NAMES.get(re.sub(r"[._]", "", field).lower())
            if known is not None and value is not None:
                given.setdefault(known, (field, value))
        name = _named(*given.get("name", given.get("id", ("name", ""))))
        wait = _whole(*given.get("wait", ("", 0)), least=0) / 1000
        return cls(
            name,
            _format(given.get("format")),
            _format(given.get("key_format")),
            _format(given.get("value_format")),
            _one(given.get("reset"), ("latest", "earliest", "none"), settings.auto_offset_reset),
            _one(
                given.get("isolation"), ("read_committed", "read_uncommitted"), settings.isolation
            ),
            _one(given.get("auto_commit"), ("true", "false"), "true") == "true",
            max(1, _whole(*given.get("min_bytes", ("", 1)), least=-1)),
            min(wait, LONGEST_WAIT / 1000) if "wait" in given else settings.request_timeout,
        )


def pattern_of(text: str) -> re.Pattern[str]:
    """Of topics. Raises Refusal 400.

    It is a client's, and is matched in the loop that serves all: `(a+)+` would take hours for one
    name, and so would `.?` thirty times. So there is no repetition, and no choice, within another,
    and all of them leave no more ways than three repetitions without a bound.
    """
    try:
        compiled = re.compile(text)
        ways = _ways(regular.parse(text)) if len(text) <= LONGEST_PATTERN else math.inf
    except (re.error, OverflowError, RecursionError) as exc:
        raise wrong("topic_pattern", f"is no regular expression: {exc}") from None
    if ways > MAX_WAYS:
        what = f"has over {LONGEST_PATTERN} characters, {REPETITIONS} repetitions, or a nested one"
        raise wrong("topic_pattern", f"{what}; make it simpler")
    return compiled


def _ways(node: Any, within: bool = False) -> float:
    """Return in how many ways a text can be tried, at most. within: of a repetition."""
    ways = 1.0
    for operator, about in node:
        repeated = str(operator) in REPEATS and about[1] > 1
        if within and (repeated or str(operator) == "BRANCH"):
            return math.inf
        if str(operator) in REPEATS:
            ways *= max(1, min(about[1], LONGEST_TOPIC) - about[0] + 1)
        elif str(operator) == "BRANCH":
            ways *= len(about[1])
        for inner in _inner(about):
            ways *= _ways(inner, within or repeated)
    return ways


def _inner(about: Any) -> list[Any]:
    """The sub-patterns in what an operator is about."""
    if isinstance(about, regular.SubPattern):
        return [about]
    if isinstance(about, tuple | list):
        return [each for one in about for each in _inner(one)]
    return []


def format_of(field: str, value: Any) -> Format:
    """Raises Refusal 400. `text` is what Strimzi's bridge calls a string."""
    try:
        return Format.STRING if value == "text" else Format.of(value)
    except FormatError as exc:
        raise wrong(field, str(exc)) from None


def _format(given: tuple[str, Any] | None) -> Format | None:
    return None if given is None else format_of(*given)


def _named(field: str, value: Any) -> str:
    if not isinstance(value, str) or (value and not NAME.fullmatch(value)):
        raise wrong(field, "is no name; use up to 200 letters, digits, '.', '_', '~' and '-'")
    if value in (".", ".."):
        raise wrong(field, "is no part of a path; use another name")
    return value


def _one(given: tuple[str, Any] | None, names: tuple[str, ...], otherwise: str) -> Any:
    if given is None:
        return otherwise
    field, value = given
    text = str(value).lower() if isinstance(value, str | bool) else ""
    if text not in names:
        raise wrong(field, f"is none of {', '.join(names)}; use one of them")
    return text


def _whole(field: str, value: Any, *, least: int) -> int:
    text = value if not isinstance(value, str) else value.strip()
    number = int(text) if isinstance(text, str) and re.fullmatch(r"-?[0-9]{1,9}", text) else text
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= 10**9:
        raise wrong(field, f"is no number from {least} on; correct it")
    return number
