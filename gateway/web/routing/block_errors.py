"""Define the errors that clients get whom operators block.

Their `reason` is that of the `end` event of a stream that they end.
"""

from __future__ import annotations

import random

from gateway.core.client.terms import EndReason
from gateway.errors import NotGranted, RequestError

RETRY_DELAY_S = (3.0, 10.0)  # seconds until a client of a paused route tries again


class RoutePaused(RequestError):
    reason = EndReason.PAUSED

    def __init__(self) -> None:
        detail = "this route is paused by an operator; come back later"
        super().__init__(503, "Paused", detail, retry_after=random.uniform(*RETRY_DELAY_S))


class AccessRevoked(NotGranted):
    reason = EndReason.ACCESS_REVOKED

    def __init__(self) -> None:
        super().__init__(403, "your access was revoked; ask whoever runs the gateway")
