"""Name the treatments of clients that take less than they are sent."""

from __future__ import annotations

from enum import StrEnum


class SlowClientPolicy(StrEnum):
    """What happens to a client that falls out of its channel's ring (`slowClient` of a route).

    CATCH_UP reads the missed records, SKIP leaves them out and sends a gap, CONFLATE sends the
    latest record of each key, and DISCONNECT ends the stream.

    `PrivateReader` applies it in `_apply_slow_policy`: after `fall_behind`, and when a client
    without credit has missed as much (`_apply_credit_policy`). CONFLATE also holds while a client
    that catches up has no credit (`_conflate_without_credit`).
    """

    CATCH_UP = "catchUp"
    SKIP = "skip"
    CONFLATE = "conflate"
    DISCONNECT = "disconnect"
