"""Why a query ended: one line of it for people, and whether trying again may help.

Spark wraps what happened in three or four exceptions, some with pages of plans and traces; of a
Python function the cause is the last line of a trace within a message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

_RETRIED = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|"
    r"NotLeaderOr\w+|LeaderNotAvailable|CoordinatorNotAvailable|CoordinatorLoadInProgress|"
    r"NotEnoughReplicas\w*|Retriable|FencedLeaderEpoch|UnknownLeaderEpoch|NotController)\w*"
    r"|java\.net\.(ConnectException|SocketTimeoutException|UnknownHostException|SocketException)"
    r"|KafkaError\{code=(_TRANSPORT|_ALL_BROKERS_DOWN|_TIMED_OUT|_MSG_TIMED_OUT|_RESOLVE|_FENCED|"
    r"_TIMED_OUT_QUEUE|REQUEST_TIMED_OUT|COORDINATOR_\w+|NOT_COORDINATOR|LEADER_NOT_AVAILABLE|"
    r"NOT_LEADER\w*|NOT_ENOUGH_REPLICAS\w*|CONCURRENT_TRANSACTIONS|PRODUCER_FENCED|"
    r"INVALID_PRODUCER_EPOCH)\b"
    r"|\b(RegistryUnavailable|BrokerUnavailable):"
    r"|is finished by the next start"
    r"|Failed to (?:create new|construct) Kafka\w*"
)
_TRACED = re.compile(r"Traceback \(most recent call last\)")
_RAISED = re.compile(r"^([A-Za-z_][\w.]*): (.*)$", re.MULTILINE)
_CAUSED = re.compile(r"^(?:Caused by)?: ([A-Za-z_][\w.$]*)(?:: (.*))?$", re.MULTILINE)
_WRAPPERS = re.compile(
    r"(StreamingQuery|Spark|ForeachBatchUserFunc|ForeachUserFunc|Execution|Py4J|Python)Exception$"
)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
LONGEST = 400  # characters of a reason


class Failure(NamedTuple):
    """reason: one line. transient: may it be over by itself?"""

    reason: str
    transient: bool


class Cause(NamedTuple):
    """An exception of a chain. kind: its class."""

    kind: str
    message: str


def of(chain: Sequence[Cause]) -> Failure:
    """Of a chain of causes, the outermost first."""
    texts = [f"{each.kind}: {each.message}" for each in chain]
    transient = any(_RETRIED.search(text) for text in texts)
    return Failure(_reason(chain), transient)


def chain(query: Any) -> list[Cause]:
    """Of a StreamingQuery that ended; empty if nothing failed."""
    held = query._jsq.exception()
    if not held.isDefined():
        return []
    return _of_java(held.get())


def causes(error: BaseException) -> list[Cause]:
    """Return the causes of what was raised here: those of Java where Spark's JVM raised it, else
    itself."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    return _of_java(java) or [Cause(type(error).__name__, str(error))]


def explain(error: BaseException) -> str:
    """Return one line of why something was raised here: of Java's exceptions their cause."""
    found = causes(error)
    return _reason(found) if "." in found[0].kind else _first(found[0].message) or found[0].kind


def _of_java(error: Any) -> list[Cause]:
    found: list[Cause] = []
    while error is not None and len(found) < 20:
        found.append(Cause(str(error.getClass().getName()), str(error.getMessage() or "")))
        error = error.getCause()
    return found


def _reason(chain: Sequence[Cause]) -> str:
    """The innermost that says something of its own."""
    for each in reversed(chain):
        if _TRACED.search(each.message):
            raised = _RAISED.findall(each.message)
            if raised:
                kind, said = raised[-1]
                if kind.endswith("Py4JJavaError"):  # its own text says which call it was, no more
                    java = [Cause(*found) for found in _CAUSED.findall(each.message)]
                    return _reason(java or [Cause(kind, said)])
                return _short(said if kind.startswith("gateway.errors.") else f"{kind}: {said}")
        line = _first(each.message)
        if line and not _WRAPPERS.search(each.kind):
            return _short(f"{each.kind.rpartition('.')[2]}: {line}")
    lines = [_first(each.message) for each in reversed(chain) if _first(each.message)]
    return _short(lines[0] if lines else "it ended without saying why")


def _first(message: str) -> str:
    line = next((each.strip() for each in message.splitlines() if each.strip()), "")
    return _CONDITION.sub("", line)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
