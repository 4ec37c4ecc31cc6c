"""What a client is told whom a guard does not let in (RFC 6750 3). Never what it sent."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from gateway.errors import GuardUnavailable, NotGranted

AGAIN = (3.0, 10.0)  # seconds until a client asks again whom nobody could judge

_QUOTED = re.compile(r"[\x20-\x7e]*")  # RFC 9110 5.6.4, without obs-text
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749 3.3


class Refusals:
    """Those of one guard.

    realm: of the challenge, where it is ASCII. how: to send credentials, such as 'send a token as
    Authorization: Bearer TOKEN'. scheme: of a challenge of its own, before `Bearer`.
    """

    def __init__(self, guard: str, realm: str, how: str, scheme: str = "") -> None:
        self._guard = guard
        self._how = how
        name = realm if _QUOTED.fullmatch(realm) else "gateway"
        quoted = re.sub(r'(["\\])', r"\\\1", name)
        own = f'{scheme} realm="{quoted}", charset="UTF-8", ' if scheme else ""
        self._challenge = f'{own}Bearer realm="{quoted}"'

    def unknown(self) -> NotGranted:
        """It says nothing of itself; a challenge has no error then (RFC 6750 3.1)."""
        detail = f"this stream is guarded by '{self._guard}'; {self._how}"
        return NotGranted(401, detail, challenge=self._challenge)

    def invalid(self, why: str) -> NotGranted:
        """why: in ASCII, without quotes, of our own words only."""
        challenge = f'{self._challenge}, error="invalid_token", error_description="{why}"'
        return NotGranted(401, f"{why}; {self._how}", challenge=challenge)

    def ambiguous(self, why: str) -> NotGranted:
        challenge = f'{self._challenge}, error="invalid_request", error_description="{why}"'
        return NotGranted(400, f"{why}; send it once", challenge=challenge)

    def lacking(self, roles: Sequence[str]) -> NotGranted:
        """roles: that the route asks for, and that it has not."""
        told = "role" if len(roles) == 1 else "roles"
        detail = f"guard '{self._guard}' does not grant the {told} {', '.join(roles)}"
        challenge = f'{self._challenge}, error="insufficient_scope"'
        scope = [role for role in roles if _SCOPE.fullmatch(role)]
        if scope:
            challenge += f', scope="{" ".join(scope)}"'
        detail += "; ask whoever gives them, and come back with new credentials"
        return NotGranted(403, detail, challenge=challenge, roles=roles)

    def denied(self) -> NotGranted:
        """The application knows it, and says no."""
        detail = f"the application denies this stream to you (guard '{self._guard}')"
        challenge = f'{self._challenge}, error="insufficient_scope"'
        return NotGranted(403, f"{detail}; ask whoever runs it", challenge=challenge)

    def uncertain(self, why: str) -> GuardUnavailable:
        """Nobody can say now."""
        detail = f"guard '{self._guard}': {why}; come back later"
        return GuardUnavailable(detail, retry_after=random.uniform(*AGAIN))
