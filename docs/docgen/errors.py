"""Write the reference of errors: the titles of problems, and the codes of WebSocket and sidecar.

`find_problems` and `find_sidecar_codes` find them in the source, so that none is left out. The
tables here say what each of them means and what to do.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import gateway
from gateway.errors import (
    AccessDenied,
    FormatError,
    GatewayError,
    InvalidRecord,
    KafkaError,
    KeyReused,
    NotGranted,
    RecordRefused,
    RecordTooLarge,
    RegistryUnavailable,
    TableTooLarge,
    TokenError,
    TokenTooOld,
    TransactionOpen,
    UnknownGroup,
    UnknownTopic,
)
from gateway.web.http import problems

SOURCE = Path(gateway.__file__).parent

PROBLEMS = {
    "Access denied": "Kafka does not let the gateway's user read or write the topic. Grant it.",
    "Bad message": "A WebSocket message is no JSON object of a known shape. Correct it.",
    "Bad request": "A parameter, a header or the body is wrong.",
    "Busy": "Connections (503), those of the address or identity (429), or `memory` are used up: "
    "[Limits](../limits.md).",
    "Configuration refused": "The configuration to load has mistakes.",
    "Configured anew": "The configuration was replaced meanwhile. Nothing was written. Send it "
    "again.",
    "Conflict": "Another reload is under way, or the request does not fit the present state.",
    "Content too large": "The body or the record is larger than the gateway or its topic takes.",
    "Draining": "The gateway is about to end. Send it again: another one answers.",
    "Expectation failed": "`Expect` is not `100-continue`. Leave it out.",
    "Forbidden": "A guard knows the client and does not admit it. The detail names missing roles.",
    "Foreign origin": "A page of another site asks; the log names it. [Allow "
    "it](../browser.md#pages-of-another-origin), and let a proxy pass on `Host` with its port.",
    "Guard unavailable": "The issuer or the application of the guard is away: see `/health/ready`.",
    "HTTP version not supported": "The request is neither HTTP/1.1 nor HTTP/1.0.",
    "History is limited": "The position or `?from=` is older than the route's `history` allows.",
    "Idempotency key reused": "The key was used for another record. Use a new key.",
    "Internal error": "The gateway failed.",
    "Invalid document": "The latest record of the key cannot be shown.",
    "Kafka is unavailable": "No broker answers as it should; `/health/ready` says why.",
    "Method not implemented": "The method of the request is unknown.",
    "Misdirected request": "`listen.hosts` does not list the name in `Host`, or `listen.forwarded` "
    "the proxy.",
    "No dictionary": "The route has no compression dictionary: see `compression` and `history`.",
    "No document": "No record has this key, or it was deleted.",
    "No progress": "Jobs write no progress to a topic. Set `pipelines.progress.topic`.",
    "No reply in time": "No reply arrived within the route's `timeout`. It may still arrive.",
    "No such reply": "No request with this correlation id is known.",
    "Not found": "The entry of the list does not exist.",
    "Not of the model": "The record does not match the schema of its topic. Correct it.",
    "Not to be chosen": "The route does not let clients choose this filter, field or topic.",
    "Nothing to be shown": "The client lacks the roles of all fields of the route.",
    "Paused": "An operator [paused](../metrics.md#admin-api) the route.",
    "Precondition failed": "The document has changed since it was read. Read it again.",
    "Rate limited": "The address exceeds `listen.limits.rate`.",
    "Record refused": "Kafka does not take the record as it is. Change it.",
    "Registry away": "The schema registry does not answer.",
    "Reply gone": "The reply is no longer kept, or the request was never answered.",
    "Reply not understood": "The reply's status or headers cannot be sent to a client.",
    "Request header fields too large": "The head of the request is over 64 KiB.",
    "Request timeout": "The request did not arrive in time. Send it again.",
    "Resume token refused": "The position is damaged, or of another cluster or other topics. "
    "Start without it.",
    "Subscription exists": "The socket has a stream with this `id`. Use another one.",
    "The gateway is not started": "The application that mounts the gateway did not start it.",
    "Too many keys": "The topic has more keys than its cache or `memory` holds. Raise them.",
    "Too many pipelined requests": "The connection has too many unanswered requests.",
    "Too many produces": "The socket has 100 writes without an answer. Wait for one.",
    "Too many subscriptions": "The socket has 100 streams, or 640 conditions and fields. Open "
    "another socket.",
    "Transaction open": "A Kafka transaction in the topic holds up `If-Match` or `If-None-Match`.",
    "Transfer coding not implemented": "The body has a transfer coding other than `chunked`.",
    "URI too long": "The address of the request is over 64 KiB.",
    "Unauthorized": "Credentials are missing or not valid. Log in again.",
    "Unknown cluster": "The configuration has no cluster of this name.",
    "Unknown group": "Kafka has no consumer group of this name.",
    "Unknown path": "No route has this path. `GET /` lists them.",
    "Unknown route": "The configuration has no route of this path.",
    "Unknown stream": "The stream does not exist (any more).",
    "Unknown subscription": "The socket has no stream with this `id`.",
    "Unknown topic": "No broker knows the topic, or the route does not offer it.",
    "Unknown type": "The `type` of a WebSocket message is unknown.",
    "Unsupported media type": "The route does not take this `Content-Type`.",
}
"""What the title of each problem means, and what to do."""

SIDECAR_CODES = {
    "ASSAULT": "`sidecar.admin.chaos` failed the request on purpose.",
    "BACKEND_UNAVAILABLE": "The back end does not answer. Nothing was changed. Try again.",
    "CHAOS_OFF": "Set `sidecar.admin.chaos`.",
    "DEAD_LETTER_TOPIC": "Dead letters get none of their own. Retry or commit those of the topic.",
    "FORMAT_MISMATCH": "The instance was created with another format.",
    "GROUP_FAILED": "The group cannot be joined or used. The description says why.",
    "GROUP_IN_USE": "The group has members. Stop them first.",
    "GROUP_NOT_FOUND": "No reactive group has this name.",
    "INSTANCE_BUSY": "Another request uses the instance. Ask one after the other.",
    "INSTANCE_EXISTS": "The group has an instance with this name. Use another one.",
    "INSTANCE_NOT_FOUND": "The instance was deleted, expired, or never created. Create it.",
    "INTERNAL_ERROR": "The sidecar failed. Its log says why.",
    "INTERNAL_TOPIC": "Kafka or the sidecars rely on this topic. Name one of your own.",
    "INVALID_BODY": "The message names the wrong member of the body.",
    "INVALID_CONFIGURATION": "The message names the wrong option of the new instance.",
    "INVALID_REQUEST": "The message names the wrong parameter or member.",
    "KAFKA_ACCESS_DENIED": "Kafka does not let the sidecar's user do this. Grant it.",
    "KAFKA_UNAVAILABLE": "No broker answers as it should. Try again; the log says why.",
    "KEY_REUSED": "The idempotency key was used for another request. Use a new one.",
    "KEY_SCHEMA_MISSING": "The keys need `key_schema` or `key_schema_id`.",
    "KSQLDB_ROW": "A row of ksqlDB cannot be handed on.",
    "KSQLDB_UNAVAILABLE": "ksqlDB does not answer. Try again.",
    "MEMORY_FULL": "Too many partitions are read here, or by you. Delete instances, or wait.",
    "NOT_ASSIGNED": "The partition is not assigned to the instance.",
    "NOT_OWNED": "Another instance of the sidecar has the partition now.",
    "NOT_READY": "The component starts. Try again.",
    "NOT_SUBSCRIBED": "Subscribe first.",
    "NO_OFFSET": "The group has no offset of the partition, and `autoOffsetReset` is none.",
    "OFFSET_OUT_OF_RANGE": "Kafka does not have the offset. The message names those that it has.",
    "OTHER_SUBSCRIPTION": "Topics, patterns and assignments exclude each other. Unsubscribe first.",
    "PARTLY_WRITTEN": "Some records of the request were written. Send the others again.",
    "RECORDS_TOO_LARGE": "The records, or the answer to them, are too large. Send fewer at a time.",
    "RECORDS_UNREADABLE": "A batch is damaged or too large. Go on behind it.",
    "REPLAY_ENDED": "The replay has ended and cannot be changed.",
    "REPLAY_IN_DOUBT": "Kafka does not say whether the replay was created; look for it.",
    "REPLAY_NOT_FOUND": "No replay has this id.",
    "RETRIED_ELSEWHERE": "Another request retries the same records. Come back later.",
    "TOO_MANY_INSTANCES": "`sidecar.consumer.instances` are in use, or too many are yours. "
    "Delete one, or wait.",
    "TOO_MANY_REPLAYS": "Cancel one, or wait.",
    "UNKNOWN_ASSAULT": "No assault has this name.",
    "UNKNOWN_GROUP": "The group does not exist, or is not configured.",
    "UNKNOWN_PARTITION": "The topic has no such partition.",
    "UNKNOWN_TOPIC": "No broker knows the topic.",
    "VALUE_SCHEMA_MISSING": "The values need `value_schema` or `value_schema_id`.",
    "REGISTRY_UNAVAILABLE": "The schema registry does not answer. Come back later.",
    "WRITES_FULL": "Too much waits to be written. Try again, or send fewer records.",
    "WRONG_FORMAT": "A record does not match its format or schema. Correct it.",
}
"""What each code of the sidecar's Status means, and what to do."""

# Errors whose title is made where they become a response, one of each.
_SAMPLES: tuple[GatewayError, ...] = (
    KeyReused(""),
    RecordTooLarge(""),
    InvalidRecord(""),
    RecordRefused(""),
    FormatError(""),
    RegistryUnavailable("", retry_after=1.0),
    TableTooLarge(""),
    TokenTooOld(""),
    TransactionOpen(""),
    TokenError(""),
    UnknownGroup("", group="", code=0),
    UnknownTopic("", topic=""),
    AccessDenied(""),
    KafkaError(""),
    *(NotGranted(status, "") for status in (400, 401, 403)),
)
_RAISED = ("RequestError", "BadMessageError")

_INTRODUCTION = """\
# Errors

Every error over HTTP is a problem (RFC 9457) with the content type `application/problem+json`. Over
WebSocket it is an `error` message, whose `code` is the title in lower case with hyphens.

```json
{
  "title": "Unknown topic",
  "status": 404,
  "detail": "no broker knows topic 'order'; create it, or correct kafka.topics",
  "instance": "/events/orders"
}
```

`detail` says what is wrong and what to do. It may change: programs should decide by `status` and
`title`. A 503 and a 429 have a `Retry-After`: come back then.

An `EventSource`, which gives up at any status but 200, [gets 200 and an event](../sse.md#errors).

## Problems

"""

_SIDECAR = """
## Codes of the sidecar

Errors of the sidecar are `{"statusCode", "code", "message", "description"}`. A code that is not
listed is the HTTP status in words, such as `NOT_ACCEPTABLE` for 406. Codes that begin with
`KSQLDB_` and end in a number have ksqlDB's own number.

"""


def build_errors_page() -> str:
    """Return the page."""
    found = find_problems()
    parts = [_INTRODUCTION]
    for title in sorted(found):
        statuses = ", ".join(map(str, sorted(found[title]))) or "WebSocket"
        parts.append(f"- **{title}** ({statuses}): {PROBLEMS.get(title, '')}\n")
    parts.append(_SIDECAR)
    for code in sorted(find_sidecar_codes()):
        parts.append(f"- `{code}`: {SIDECAR_CODES.get(code, '')}\n")
    return "".join(parts)


@cache
def find_problems() -> dict[str, set[int]]:
    """Return the titles of all problems, with the HTTP statuses that they are sent with."""
    found: dict[str, set[int]] = defaultdict(set)
    for error in _SAMPLES:
        body = json.loads(bytes(problems.build_problem(error, "/").body))
        found[body["title"]].add(body["status"])
    found["Internal error"].add(500)
    for path in SOURCE.rglob("*.py"):
        if "sidecar" in path.relative_to(SOURCE).parts:
            continue
        for call in _iter_calls(path):
            values = [a.value if isinstance(a, ast.Constant) else None for a in call.args]
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            texts = [value for value in values[:2] if isinstance(value, str)]
            if (name in _RAISED or name == "__init__") and texts and _is_title(texts[0]):
                found[texts[0]].update(v for v in values[:1] if isinstance(v, int))
    found["Busy"].update((429, 503))
    return dict(found)


def find_sidecar_codes() -> set[str]:
    """Return the codes that the sidecar's errors have beside the words of HTTP statuses."""
    found = {"KEY_SCHEMA_MISSING", "VALUE_SCHEMA_MISSING"}  # made of the name of the part
    for path in (SOURCE / "sidecar").rglob("*.py"):
        for call in _iter_calls(path):
            found |= {
                word.value.value
                for word in call.keywords
                if word.arg == "code"
                and isinstance(word.value, ast.Constant)
                and isinstance(word.value.value, str)
            }
            if getattr(call.func, "id", "") == "StatusError" or not call.args:
                continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                items = [e.value for e in node.value.elts if isinstance(e, ast.Constant)]
                found |= {i for i in items if isinstance(i, str) and i.isupper() and "_" in i}
    return found


def _iter_calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield node


def _is_title(text: str) -> bool:
    return text[:1].isupper() and len(text) < 40
