"""Parse a client's settings of an instance, and build the URI by which it reaches the instance.

Settings are in the contract's words or in Confluent's: a name means the same in camel case, with
underscores and with dots.

A new instance exists in one process only, so the client gets a URI that leads there:
`sidecar.consumer.baseUri` if it is set; else the one in the headers of proxies (RFC 7239, or
X-Forwarded-Host, -Proto and -Path), where the first of several values is what the client requested;
else the request's Host. These headers are not authenticated, but only the client that sent them
gets the result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from re import _parser as regular  # type: ignore[attr-defined]
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from gateway.config.sections.component_checks import MAX_TOPIC_NAME_CHARS
from gateway.config.sections.sidecar import Consumer
from gateway.errors import FormatError
from gateway.formats.codec import SerializationFormat
from gateway.kafka.group.consumer_options import Isolation, OffsetReset
from gateway.sidecar.http.spec import create_invalid_request

NAME_PATTERN = re.compile(r"[A-Za-z0-9._~-]{1,200}")
MAX_PATTERN_CHARS = 200
REPEAT_OPERATORS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")  # names in `re._constants`
MAX_REPETITIONS = 2  # without a bound, in one pattern, besides a `.*` at its end
# In how many steps a pattern may be tried on a name: an unbounded repetition takes 0 to 249
# characters, and each of these ways takes all steps that follow. That takes at most 2.5 ms.
MAX_MATCH_STEPS = 16 * (MAX_TOPIC_NAME_CHARS + 1) ** MAX_REPETITIONS
MAX_POLL_TIMEOUT_MS = 300_000  # longer than usual proxies let a response wait

# By the name in lower case, without underscores and dots.
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
    """A client's settings of an instance, with the section's defaults.

    Attributes:
        name: Empty if the sidecar is to choose it.
        format: Of keys and values, where no other is named; None if the client named none.
        auto_commit: Whether a poll commits the records of the poll before it.
        min_bytes: Bytes of records that a poll waits for.
    """

    name: str
    format: SerializationFormat | None
    key_format: SerializationFormat | None
    value_format: SerializationFormat | None
    auto_offset_reset: OffsetReset
    isolation: Isolation
    auto_commit: bool
    min_bytes: int
    timeout_s: float

    @classmethod
    def from_body(cls, body: Mapping[str, Any], settings: Consumer) -> InstanceOptions:
        """Parse the body of a request that creates an instance; raises StatusError 400.

        Of two names of one field the first counts.
        """
        options: dict[str, tuple[str, Any]] = {}
        for field, value in body.items():
            option = _FIELDS_BY_NAME.get(re.sub(r"[._]", "", field).lower())
            if option is not None and value is not None:
                options.setdefault(option, (field, value))
        name = _parse_name(*options.get("name", options.get("id", ("name", ""))))
        timeout_s = _parse_integer(*options.get("wait", ("", 0)), minimum=0) / 1000
        return cls(
            name,
            _parse_optional_format(options.get("format")),
            _parse_optional_format(options.get("key_format")),
            _parse_optional_format(options.get("value_format")),
            _parse_choice(
                options.get("reset"), ("latest", "earliest", "none"), settings.auto_offset_reset
            ),
            _parse_choice(
                options.get("isolation"), ("read_committed", "read_uncommitted"), settings.isolation
            ),
            _parse_choice(options.get("auto_commit"), ("true", "false"), "true") == "true",
            max(1, _parse_integer(*options.get("min_bytes", ("", 1)), minimum=-1)),
            min(timeout_s, MAX_POLL_TIMEOUT_MS / 1000)
            if "wait" in options
            else settings.request_timeout,
        )


def compile_topic_pattern(text: str) -> re.Pattern[str]:
    """Compile a client's pattern of topics; raises StatusError 400 if it is too complex.

    It is matched in the event loop that serves all clients: `(a+)+` would take hours for one name,
    and so would `.?` thirty times. So neither `?`, `*` nor `|` may be within a repetition, and all
    of them together may take no more steps than two unbounded repetitions with a dozen characters
    behind them. A `.*` at the end takes the rest of any name, in one way.
    """
    work = math.inf
    try:
        if len(text) <= MAX_PATTERN_CHARS:
            compiled = re.compile(text)
            parsed = regular.parse(text)
            if repr(parsed[-1:]) == repr(regular.parse(".*")):
                parsed = parsed[:-1]
            work = sum(_measure_match(parsed))
    except (re.error, OverflowError, RecursionError) as exc:
        raise create_invalid_request("topic_pattern", f"is no regular expression: {exc}") from None
    if work > MAX_MATCH_STEPS:
        problem = (
            f"has over {MAX_PATTERN_CHARS} characters, {MAX_REPETITIONS} repetitions, "
            "a nested one, or too much behind the last one"
        )
        raise create_invalid_request("topic_pattern", f"{problem}; make it simpler")
    return compiled


def _measure_match(node: Any, is_nested: bool = False) -> tuple[float, float]:
    """Return upper bounds of the ways to try a parsed pattern on a text, and of their steps."""
    paths, steps = 1.0, 0.0
    for operator, argument in node:
        # The argument of a repetition is (minimum, maximum, sub-pattern), that of a BRANCH
        # (None, branches).
        name = str(operator)
        repeats = name in REPEAT_OPERATORS
        if is_nested and (repeats or name == "BRANCH"):
            return math.inf, math.inf
        most = min(argument[1], MAX_TOPIC_NAME_CHARS) if repeats else 1
        ways = max(1.0, most - argument[0] + 1) if repeats else 1.0
        inner_steps = float(MAX_TOPIC_NAME_CHARS) if name == "GROUPREF" else 1.0
        for subpattern in _list_subpatterns(argument):
            sub_paths, sub_steps = _measure_match(subpattern, is_nested or most > 1)
            ways, inner_steps = ways * sub_paths, inner_steps + sub_steps
        if name == "BRANCH":
            ways *= len(argument[1])
        steps += paths * max(1, most) * inner_steps
        paths *= ways
    return paths, steps


def _list_subpatterns(argument: Any) -> list[Any]:
    if isinstance(argument, regular.SubPattern):
        return [argument]
    if isinstance(argument, tuple | list):
        return [pattern for element in argument for pattern in _list_subpatterns(element)]
    return []


def parse_format(field: str, value: Any) -> SerializationFormat:
    """Parse the name of a format, with Strimzi's `text` for a string; raises StatusError 400."""
    try:
        return SerializationFormat.STRING if value == "text" else SerializationFormat.parse(value)
    except FormatError as exc:
        raise create_invalid_request(field, str(exc)) from None


def _parse_optional_format(option: tuple[str, Any] | None) -> SerializationFormat | None:
    return None if option is None else parse_format(*option)


def _parse_name(field: str, value: Any) -> str:
    if not isinstance(value, str) or (value and not NAME_PATTERN.fullmatch(value)):
        raise create_invalid_request(
            field, "is no name; use up to 200 letters, digits, '.', '_', '~' and '-'"
        )
    if value in (".", ".."):
        raise create_invalid_request(field, "is no part of a path; use another name")
    return value


def _parse_choice(option: tuple[str, Any] | None, names: tuple[str, ...], default: str) -> Any:
    if option is None:
        return default
    field, value = option
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


_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_PATH = re.compile(r"(/[A-Za-z0-9._~%!$&'()*+,;=:@-]*){1,64}")


def build_base_uri(request: Request, configured: str | None, group: str, name: str) -> str:
    """Return the base URI of an instance, without a slash at its end."""
    path = f"/consumers/{quote(group, safe='')}/instances/{quote(name, safe='')}"
    if configured is not None:
        return configured.rstrip("/") + path
    scheme, host = _parse_forwarded(request)
    return f"{scheme}://{host}{_parse_prefix(request, group)}{path}"


def _parse_forwarded(request: Request) -> tuple[str, str]:
    headers = request.headers
    first = headers.get("forwarded", "").partition(",")[0]
    pairs = (parameter.partition("=") for parameter in first.split(";"))
    parameters = {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
    host = parameters.get("host") or headers.get("x-forwarded-host", "").partition(",")[0].strip()
    scheme = (
        parameters.get("proto") or headers.get("x-forwarded-proto", "").partition(",")[0].strip()
    )
    if scheme.lower() not in ("http", "https"):
        scheme = request.url.scheme
    if not _HOST.fullmatch(host):
        host = headers.get("host", "")
    if not _HOST.fullmatch(host):
        host = "{}:{}".format(*(request.scope.get("server") or ("localhost", 80)))
    return scheme.lower(), host


def _parse_prefix(request: Request, group: str) -> str:
    """Return the prefix of the path that a proxy removes before it forwards a request."""
    path = request.headers.get("x-forwarded-path", "").partition("?")[0].rstrip("/")
    prefix = path.removesuffix(f"/consumers/{quote(group, safe='')}")
    if prefix == path:
        prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    return prefix if _PATH.fullmatch(prefix) else ""
