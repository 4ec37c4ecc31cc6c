"""Name what is done with clients that take less than they are sent."""

from __future__ import annotations

from enum import StrEnum


class SlowClientPolicy(StrEnum):
    """What happens to a client that falls out of its channel's ring (`slowClient` of a route).

    CATCH_UP reads what it missed, SKIP leaves that out and sends a gap, CONFLATE sends the latest
    record of each key, and DISCONNECT ends the stream.

    `PrivateReader` applies it: `fall_behind` when the ring drops what the client has not taken, and
    `take` (by `_apply_credit_policy`) when a client without credit has missed as much. Both end in
    `_apply_slow_policy`. CONFLATE also holds while a client that catches up has no credit
    (`_conflate_without_credit`).
    """

    CATCH_UP = "catchUp"
    SKIP = "skip"
    CONFLATE = "conflate"
    DISCONNECT = "disconnect"
