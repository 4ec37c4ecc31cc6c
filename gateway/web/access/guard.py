"""Define what a guard is, what it is asked, and how it refuses a client (RFC 6750 3).

A refusal has no text of the client, and a description of a guard none of its secrets, nor the URL
of an application that it asks.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar
from urllib.parse import quote

from starlette.requests import HTTPConnection

from gateway.config import Credentials, GuardSection, PathPattern, Route
from gateway.config.capabilities import parse_location
from gateway.config.sections.guard_section import CREDENTIALS_PLACEHOLDER
from gateway.errors import GuardUnavailable, NotGranted

from .external_http import ExternalHttp
from .grant import AmbiguousCredentials, CredentialsLocations, Grant

SectionT = TypeVar("SectionT", bound=GuardSection)

REQUESTED_ACTION_SCOPE_KEY = "gateway.wanted"
"""The member of an ASGI scope that has the `RequestedAction` to be admitted."""


class RequestedAction(NamedTuple):
    """What a client wants to do: an HTTP method, and a path as it came."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """A client's request, as guards see it.

    `token` is that of a `token` message, which overrides the one of the connection.
    """

    route: Route
    params: Mapping[str, str]
    connection: HTTPConnection
    token: str | None = None

    @property
    def method(self) -> str:
        """What the client wants to do, as an HTTP method on any wire."""
        action: RequestedAction | None = self.connection.scope.get(REQUESTED_ACTION_SCOPE_KEY)
        if action is not None:
            return action.method
        return str(self.connection.scope.get("method", "GET"))

    @property
    def path(self) -> str:
        """The path of the route that the client asks for.

        Parameters are filled in and percent-encoded; `/*` stands for a wildcard. The path of a
        WebSocket is not used: it may carry many streams, and its own path is none of theirs.
        """
        action: RequestedAction | None = self.connection.scope.get(REQUESTED_ACTION_SCOPE_KEY)
        for pattern in self._patterns:
            if set(pattern.params) != self.params.keys():
                continue
            if action is None or pattern.match(action.path) is not None:
                segments = [
                    quote(self.params[part[1:-1]], safe="") if part[:1] == "{" else part
                    for part in pattern.segments
                ]
                return "/" + "/".join([*segments, "*"] if pattern.has_wildcard else segments)
        return self.route.path

    @property
    def _patterns(self) -> Iterator[PathPattern]:
        yield from (when.pattern for when in self.route.when)
        if self.route.with_.reply_location is not None:
            yield parse_location(self.route.with_.reply_location)


@dataclass(frozen=True, slots=True)
class GuardContext:
    """The dependencies of a guard; `realm` is for its challenges (RFC 9110 11.5)."""

    name: str
    realm: str
    external_http: ExternalHttp


class Guard(ABC, Generic[SectionT]):
    """Knows who a client is. Created and owned by `Guards`, one per configured guard.

    Each kind is a subclass, listed in `guards.GUARD_LOADERS`. `is_renewable` says whether it uses
    the token of a `token` message.
    """

    is_renewable: bool
    errors: GuardErrors

    @classmethod
    @abstractmethod
    def create(cls, section: SectionT, context: GuardContext) -> Self: ...

    @classmethod
    @abstractmethod
    def describe(cls, section: SectionT) -> Sequence[SecurityScheme]:
        """Return how clients identify themselves to such a guard, the best way first."""

    async def prepare(self) -> None:
        """Fetch what is needed before the first client comes; a failure is ignored."""
        return

    def find_problem(self) -> str | None:
        """Return for operators why the guard cannot decide about any client; do not wait."""
        return None

    @abstractmethod
    async def grant(self, request: AccessRequest) -> Grant:
        """Return what the guard knows of a client.

        Raises:
            NotGranted: The guard does not know the client, or denies access.
            GuardUnavailable: The guard cannot decide now.
        """


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


def find_token(
    request: AccessRequest, locations: CredentialsLocations, errors: GuardErrors
) -> str | None:
    """Return the token of a message or of the connection; refuse one that comes several times."""
    try:
        return request.token or locations.find(request.connection)
    except AmbiguousCredentials as exc:
        raise errors.build_ambiguous_credentials(str(exc)) from None


BEARER_SCHEME: Mapping[str, Any] = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}


class SecurityScheme(NamedTuple):
    """One way to identify a client to a guard; its commands have words to replace.

    `is_sent_by_browser` says whether the EventSource of a page of the same site sends it on its
    own.
    """

    definition: Mapping[str, Any]
    curl: str = ""
    wscat: str = ""
    query: str = ""
    is_sent_by_browser: bool = False


def iter_credentials_schemes(credentials: Credentials) -> Iterator[SecurityScheme]:
    for name, form in credentials.headers.items():
        is_bearer = name == "authorization" and form.lower().startswith("bearer ")
        yield build_header_scheme(name, form, BEARER_SCHEME if is_bearer else None)
    for name, form in credentials.cookies.items():
        yield build_header_scheme("cookie", f"{name}={form}", build_api_key("cookie", name))
    for name, form in credentials.query.items():
        yield SecurityScheme(
            build_api_key("query", name), query=f"{name}={_fill_placeholder(form)}"
        )


def build_header_scheme(
    name: str, form: str, definition: Mapping[str, Any] | None = None
) -> SecurityScheme:
    option = f"-H '{name.title()}: {_fill_placeholder(form)}'"
    return SecurityScheme(
        definition or build_api_key("header", name),
        option,
        option,
        is_sent_by_browser=name == "cookie",
    )


def build_api_key(location: str, name: str) -> dict[str, Any]:
    return {"type": "httpApiKey", "in": location, "name": name}


def _fill_placeholder(form: str) -> str:
    """Return a form with a word to replace, without quotes that would end a shell argument."""
    return form.replace(CREDENTIALS_PLACEHOLDER, "TOKEN").replace("'", "")
