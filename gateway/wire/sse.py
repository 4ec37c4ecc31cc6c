"""The bytes of server-sent events (WHATWG HTML 9.2).

An event is written in two pieces: everything but its id, which all clients of a channel
share, and the id with the blank line that ends the event, which a cohort may have of its
own. The id comes last on purpose: a client that takes an id as soon as its line is read
(fetch-event-source, r3labs) would skip an event cut between an early id and its end.
"""

from __future__ import annotations

_LF, _CR = b"\n\r"


def encode_data(payload: bytes, event: str | None = None) -> bytes:
    """All of an event but its id line and the blank line: `event:` if named, and `data:`.

    Any bytes may be given; CR and CRLF arrive as LF, for a client tells them apart no more.
    Raises ValueError if the event name holds a line break.
    """
    # Looking for an int is one memchr: 105 ns in all for 200 bytes, against 460 ns with
    # `b"\n" in payload`, 460 ns by splitlines and 340 ns by replacing whatever is there.
    if _LF in payload or _CR in payload:
        payload = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        payload = payload.replace(b"\n", b"\ndata: ")
    if event is None:
        return b"data: %b\n" % payload
    return b"event: %b\ndata: %b\n" % (_encode_name(event), payload)


def encode_id(token: bytes) -> bytes:
    """The id line and the blank line that dispatches the event before it.

    token: a position token, which is ASCII without control characters by construction.
    """
    return b"id: %b\n\n" % token


def encode_event(
    name: str | None,
    payload: bytes,
    token: bytes | None = None,
    retry_ms: int | None = None,
) -> bytes:
    """A whole event; without a token the client keeps the last id it had."""
    head = b"" if retry_ms is None else encode_retry(retry_ms)
    tail = b"\n" if token is None else encode_id(token)
    return head + encode_data(payload, name) + tail


def encode_comment() -> bytes:
    """A heartbeat. One newline: on a second one some clients dispatch an empty event."""
    return b":\n"


def encode_retry(ms: int) -> bytes:
    """The line that sets the delay before a reconnect; it holds from the moment it is read."""
    return b"retry: %d\n" % ms


def _encode_name(event: str) -> bytes:
    name = event.encode()
    if _LF in name or _CR in name:
        raise ValueError(f"an event name is one line of text, not {event!r}")
    return name
