"""Build the errors of a guard that refuses a client (RFC 6750 3), without text of the client."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from gateway.errors import GuardUnavailable, NotGranted

RETRY_DELAY_S = (3.0, 10.0)  # seconds, at random, until a client tries again if nobody could decide

_QUOTED_TEXT = re.compile(r"[\x20-\x7e]*")  # RFC 9110 5.6.4, without obs-text
_SCOPE_TOKEN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749 3.3


class GuardErrors:
    def __init__(self, guard_name: str, realm: str, hint: str, scheme: str = "") -> None:
        """Create the errors; only a `realm` in ASCII is used.

        The challenge of `scheme` precedes that of `Bearer`.
        """
        self._guard_name = guard_name
        self._hint = hint
        name = realm if _QUOTED_TEXT.fullmatch(realm) else "gateway"
        quoted = re.sub(r'(["\\])', r"\\\1", name)
        scheme_challenge = f'{scheme} realm="{quoted}", charset="UTF-8", ' if scheme else ""
        self._challenge = f'{scheme_challenge}Bearer realm="{quoted}"'

    def build_missing_credentials(self) -> NotGranted:
        """Return the error for no credentials; its challenge has no error code (RFC 6750 3.1)."""
        detail = f"this stream is guarded by '{self._guard_name}'; {self._hint}"
        return NotGranted(401, detail, challenge=self._challenge)

    def build_invalid_token(self, reason: str, cause: str = "") -> NotGranted:
        """Return the error for refused credentials.

        `reason` becomes part of a header: ASCII without quotes and without text of the client.
        `cause` does not.
        """
        challenge = f'{self._challenge}, error="invalid_token", error_description="{reason}"'
        what = f"{reason} ({cause})" if cause else reason
        return NotGranted(401, f"{what}; {self._hint}", challenge=challenge)

    def build_too_large(self, reason: str) -> NotGranted:
        return NotGranted(431, f"{reason}; send fewer or smaller cookies and headers")

    def build_ambiguous_credentials(self, reason: str) -> NotGranted:
        challenge = f'{self._challenge}, error="invalid_request", error_description="{reason}"'
        return NotGranted(400, f"{reason}; send it once", challenge=challenge)

    def build_missing_roles(self, roles: Sequence[str], cause: str | None = None) -> NotGranted:
        """Return the error for missing roles; `cause` is why the client has none at all."""
        noun = "role" if len(roles) == 1 else "roles"
        detail = f"guard '{self._guard_name}' does not grant the {noun} {', '.join(roles)}"
        challenge = f'{self._challenge}, error="insufficient_scope"'
        scope = [role for role in roles if _SCOPE_TOKEN.fullmatch(role)]
        if scope:
            challenge += f', scope="{" ".join(scope)}"'
        detail += f" ({cause})" if cause else ""
        detail += "; ask whoever gives them, and come back with new credentials"
        return NotGranted(403, detail, challenge=challenge, roles=roles)

    def build_access_denied(self) -> NotGranted:
        """Return the error for a client that the application knows, but denies access."""
        detail = f"the application denies this stream to you (guard '{self._guard_name}')"
        challenge = f'{self._challenge}, error="insufficient_scope"'
        return NotGranted(403, f"{detail}; ask whoever runs it", challenge=challenge)

    def build_unavailable(self, reason: str) -> GuardUnavailable:
        detail = f"guard '{self._guard_name}': {reason}; come back later"
        return GuardUnavailable(detail, retry_after=random.uniform(*RETRY_DELAY_S))
