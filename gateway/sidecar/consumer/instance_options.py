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
from gateway.formats.codec import SerializationFormat
from gateway.sidecar.http.spec import create_invalid_request

Reset: TypeAlias = Literal["latest", "earliest", "none"]
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]

NAME_PATTERN = re.compile(r"[A-Za-z0-9._~-]{1,200}")
MAX_PATTERN_CHARS = 200
REPEAT_OPERATORS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
MAX_REPETITIONS = 3
MAX_TOPIC_NAME_CHARS = 249
MAX_MATCH_PATHS = (
    MAX_TOPIC_NAME_CHARS + 1
) ** MAX_REPETITIONS  # in which a pattern may be tried on a name
MAX_POLL_TIMEOUT_MS = (
    300_000  # ms: longer than what stands between client and sidecar lets them wait
)

_FIELDS_BY_NAME = {
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
class InstanceOptions:
    """key_format, value_format, format: as named, None for what is not. wait in seconds.

    name: empty where it is the sidecar's to make.
    """

    name: str
    format: SerializationFormat | None
    key_format: SerializationFormat | None
    value_format: SerializationFormat | None
    auto_offset_reset: Reset
    isolation: Isolation
    auto_commit: bool
    min_bytes: int
    timeout_s: float

    @classmethod
    def from_body(cls, body: Mapping[str, Any], settings: Consumer) -> InstanceOptions:
        """Raises Refusal 400 that names the field."""
        given: dict[str, tuple[str, Any]] = {}
        for field, value in body.items():
            known = _FIELDS_BY_NAME.get(re.sub(r"[._]", "", field).lower())
            if known is not None and value is not None:
                given.setdefault(known, (field, value))
        name = _parse_name(*given.get("name", given.get("id", ("name", ""))))
        wait = _parse_integer(*given.get("wait", ("", 0)), minimum=0) / 1000
        return cls(
            name,
            _parse_optional_format(given.get("format")),
            _parse_optional_format(given.get("key_format")),
            _parse_optional_format(given.get("value_format")),
            _parse_choice(
                given.get("reset"), ("latest", "earliest", "none"), settings.auto_offset_reset
            ),
            _parse_choice(
                given.get("isolation"), ("read_committed", "read_uncommitted"), settings.isolation
            ),
            _parse_choice(given.get("auto_commit"), ("true", "false"), "true") == "true",
            max(1, _parse_integer(*given.get("min_bytes", ("", 1)), minimum=-1)),
            min(wait, MAX_POLL_TIMEOUT_MS / 1000) if "wait" in given else settings.request_timeout,
        )


def compile_topic_pattern(text: str) -> re.Pattern[str]:
    """Of topics. Raises Refusal 400.

    It is a client's, and is matched in the loop that serves all: `(a+)+` would take hours for one
    name, and so would `.?` thirty times. So there is no repetition, and no choice, within another,
    and all of them leave no more ways than three repetitions without a bound.
    """
    try:
        compiled = re.compile(text)
        ways = (
            _count_match_paths(regular.parse(text)) if len(text) <= MAX_PATTERN_CHARS else math.inf
        )
    except (re.error, OverflowError, RecursionError) as exc:
        raise create_invalid_request("topic_pattern", f"is no regular expression: {exc}") from None
    if ways > MAX_MATCH_PATHS:
        what = f"has over {MAX_PATTERN_CHARS} characters, {MAX_REPETITIONS} repetitions, or a nested one"
        raise create_invalid_request("topic_pattern", f"{what}; make it simpler")
    return compiled


def _count_match_paths(node: Any, is_nested: bool = False) -> float:
    """Return in how many ways a text can be tried, at most. within: of a repetition."""
    ways = 1.0
    for operator, about in node:
        repeated = str(operator) in REPEAT_OPERATORS and about[1] > 1
        if is_nested and (repeated or str(operator) == "BRANCH"):
            return math.inf
        if str(operator) in REPEAT_OPERATORS:
            ways *= max(1, min(about[1], MAX_TOPIC_NAME_CHARS) - about[0] + 1)
        elif str(operator) == "BRANCH":
            ways *= len(about[1])
        for inner in _list_subpatterns(about):
            ways *= _count_match_paths(inner, is_nested or repeated)
    return ways


def _list_subpatterns(about: Any) -> list[Any]:
    """The sub-patterns in what an operator is about."""
    if isinstance(about, regular.SubPattern):
        return [about]
    if isinstance(about, tuple | list):
        return [each for one in about for each in _list_subpatterns(one)]
    return []


def parse_format(field: str, value: Any) -> SerializationFormat:
    """Raises Refusal 400. `text` is what Strimzi's bridge calls a string."""
    try:
        return SerializationFormat.STRING if value == "text" else SerializationFormat.parse(value)
    except FormatError as exc:
        raise create_invalid_request(field, str(exc)) from None


def _parse_optional_format(given: tuple[str, Any] | None) -> SerializationFormat | None:
    return None if given is None else parse_format(*given)


def _parse_name(field: str, value: Any) -> str:
    if not isinstance(value, str) or (value and not NAME_PATTERN.fullmatch(value)):
        raise create_invalid_request(
            field, "is no name; use up to 200 letters, digits, '.', '_', '~' and '-'"
        )
    if value in (".", ".."):
        raise create_invalid_request(field, "is no part of a path; use another name")
    return value


def _parse_choice(given: tuple[str, Any] | None, names: tuple[str, ...], default: str) -> Any:
    if given is None:
        return default
    field, value = given
    text = str(value).lower() if isinstance(value, str | bool) else ""
    if text not in names:
        raise create_invalid_request(field, f"is none of {', '.join(names)}; use one of them")
    return text


def _parse_integer(field: str, value: Any, *, minimum: int) -> int:
    text = value if not isinstance(value, str) else value.strip()
    number = int(text) if isinstance(text, str) and re.fullmatch(r"-?[0-9]{1,9}", text) else text
    if not isinstance(number, int) or isinstance(number, bool) or not minimum <= number <= 10**9:
        raise create_invalid_request(field, f"is no number from {minimum} on; correct it")
    return number
