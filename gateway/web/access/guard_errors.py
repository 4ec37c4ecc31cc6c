"""What a client is told whom a guard does not let in (RFC 6750 3). Never what it sent."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from gateway.errors import GuardUnavailable, NotGranted

RETRY_DELAY_S = (3.0, 10.0)  # seconds until a client asks again whom nobody could judge

_QUOTED_TEXT = re.compile(r"[\x20-\x7e]*")  # RFC 9110 5.6.4, without obs-text
_SCOPE_TOKEN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749 3.3


class GuardErrors:
    """Those of one guard.

    realm: of the challenge, where it is ASCII. how: to send credentials, such as 'send a token as
    Authorization: Bearer TOKEN'. scheme: of a challenge of its own, before `Bearer`.
    """

    def __init__(self, guard_name: str, realm: str, hint: str, scheme: str = "") -> None:
        self._guard_name = guard_name
        self._hint = hint
        name = realm if _QUOTED_TEXT.fullmatch(realm) else "gateway"
        quoted = re.sub(r'(["\\])', r"\\\1", name)
        own = f'{scheme} realm="{quoted}", charset="UTF-8", ' if scheme else ""
        self._challenge = f'{own}Bearer realm="{quoted}"'

    def build_missing_credentials(self) -> NotGranted:
        """It says nothing of itself; a challenge has no error then (RFC 6750 3.1)."""
        detail = f"this stream is guarded by '{self._guard_name}'; {self._hint}"
        return NotGranted(401, detail, challenge=self._challenge)

    def build_invalid_token(self, reason: str) -> NotGranted:
        """why: in ASCII, without quotes, of our own words only."""
        challenge = f'{self._challenge}, error="invalid_token", error_description="{reason}"'
        return NotGranted(401, f"{reason}; {self._hint}", challenge=challenge)

    def build_ambiguous_credentials(self, reason: str) -> NotGranted:
        challenge = f'{self._challenge}, error="invalid_request", error_description="{reason}"'
        return NotGranted(400, f"{reason}; send it once", challenge=challenge)

    def build_missing_roles(self, roles: Sequence[str]) -> NotGranted:
        """roles: that the route asks for, and that it has not."""
        told = "role" if len(roles) == 1 else "roles"
        detail = f"guard '{self._guard_name}' does not grant the {told} {', '.join(roles)}"
        challenge = f'{self._challenge}, error="insufficient_scope"'
        scope = [role for role in roles if _SCOPE_TOKEN.fullmatch(role)]
        if scope:
            challenge += f', scope="{" ".join(scope)}"'
        detail += "; ask whoever gives them, and come back with new credentials"
        return NotGranted(403, detail, challenge=challenge, roles=roles)

    def build_access_denied(self) -> NotGranted:
        """The application knows it, and says no."""
        detail = f"the application denies this stream to you (guard '{self._guard_name}')"
        challenge = f'{self._challenge}, error="insufficient_scope"'
        return NotGranted(403, f"{detail}; ask whoever runs it", challenge=challenge)

    def build_unavailable(self, reason: str) -> GuardUnavailable:
        """Nobody can say now."""
        detail = f"guard '{self._guard_name}': {reason}; come back later"
        return GuardUnavailable(detail, retry_after=random.uniform(*RETRY_DELAY_S))
