"""Define the common options of guards, and the places of a client's credentials in a request.

The names of the places are Zilla's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gateway.config.types.address import is_loopback
from gateway.config.types.fields import Duration, in_range, matching, validate_text
from gateway.config.types.section import Problem, Section, create_value_error
from gateway.config.types.substitution import safe_repr

from .listen import Listen

CREDENTIALS_PLACEHOLDER = "{credentials}"
RESERVED_QUERY_PARAMETERS = frozenset(
    {"credit", "dictionary", "fields", "filter", "from", "lastEventId", "positions"}
    | {"until", "wait"}
)
"""The query parameters that the gateway reads itself, so that no guard can use them."""

_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # RFC 9110 5.6.2
# Headers of the message and its connection. Their values are not the client's to choose freely.
_FRAMING_HEADERS = (
    "connection|content-length|content-type|expect|host|keep-alive|te|trailer|transfer-encoding|"
    "upgrade"
)


def _validate_form(value: object) -> str:
    text = validate_text(value)
    if text.count(CREDENTIALS_PLACEHOLDER) != 1:
        raise create_value_error(
            f"{safe_repr(value)} does not say where the credentials are; "
            f"write {CREDENTIALS_PLACEHOLDER} once"
        )
    return text


def _validate_query_name(value: object) -> str:
    name = validate_text(value)
    if name in RESERVED_QUERY_PARAMETERS:
        raise create_value_error(f"?{name}= is read by the gateway itself; use another name")
    return name


CredentialsForm: TypeAlias = Annotated[
    str,
    BeforeValidator(_validate_form),
    WithJsonSchema({"type": "string", "pattern": r"\{credentials\}"}),
]
_NAME_SCHEMA = WithJsonSchema({"type": "string", "minLength": 1})
HeaderName: TypeAlias = Annotated[
    str,
    matching(
        rf"(?i:(?!(?:{_FRAMING_HEADERS})$){_TOKEN})",
        "is no header for credentials; write such as authorization",
    ),
    AfterValidator(str.lower),
    _NAME_SCHEMA,
]
CookieName: TypeAlias = Annotated[
    str,
    matching(_TOKEN, "is no name of a cookie; use letters, digits, '-' and '_'"),
    _NAME_SCHEMA,
]
QueryName: TypeAlias = Annotated[str, BeforeValidator(_validate_query_name), _NAME_SCHEMA]


class Credentials(Section):
    """Where a guard finds the credentials: in headers, then in cookies, then in the query.

    On a WebSocket, where browsers cannot set headers, the subprotocol `bearer.TOKEN` beside
    `gateway.v1` is read as `authorization: Bearer TOKEN`.
    """

    headers: dict[HeaderName, CredentialsForm] = Field(
        default={}, description="Headers by name, such as `authorization: Bearer {credentials}`."
    )
    cookies: dict[CookieName, CredentialsForm] = Field(
        default={}, description='Cookies by name, such as `session: "{credentials}"`.'
    )
    query: dict[QueryName, CredentialsForm] = Field(
        default={},
        description="Query parameters by name. URLs end up in logs and histories, so prefer "
        "headers or cookies.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if not any(raw.get(part) for part in ("headers", "cookies", "query")):
            yield Problem((), "is empty; add headers, cookies or query, or leave it out")


BEARER_CREDENTIALS = Credentials(headers={"authorization": f"Bearer {CREDENTIALS_PLACEHOLDER}"})
"""The default: a bearer token in the header `Authorization` (RFC 6750 2.1)."""


ChallengeDuration = Annotated[
    Duration,
    in_range(0, 86_400),
    Field(description="How long before its end the client is asked for a new token."),
]


class GuardSection(Section):
    """A guard of any kind: its options, and their meaning for other sections.

    A kind has an option `type` with its name.
    """

    has_ambient_credentials: ClassVar[bool] = False
    """Whether browsers send its credentials by themselves, without a cookie or a header: pages of
    other sites could write with them."""

    @property
    def is_for_development(self) -> bool:
        """Whether it is refused where other machines can connect."""
        return False

    @property
    def challenge_lead(self) -> float | None:
        """Seconds before the expiry of credentials when new ones are asked for; None for never."""
        lead: float | None = getattr(self, "challenge", None)
        return lead

    @property
    def secret_parameters(self) -> Iterable[str]:
        """The parameters of the query that contain credentials, which logs must not show."""
        return ()

    @property
    def credential_headers(self) -> Iterable[str]:
        """The headers of requests that contain credentials: responses vary by them."""
        return ()

    def admits_all_of(self, other: GuardSection) -> bool:
        """Return whether each client that another guard admits is admitted by this one as well.

        The other guard's knowledge of its clients must hold, too, which other options may change.
        """
        return self == other

    def iter_warnings(self) -> Iterator[Problem]:
        """Yield options that are valid, but perhaps not as meant."""
        return iter(())

    def check_listen(self, name: str, listen: Listen) -> Iterator[Problem]:
        """Yield the problems between a guard and the address that it is used at."""
        return iter(())

    @property
    def attribute_names(self) -> Iterable[str]:
        """The attributes that a guard knows of clients, for templates."""
        return getattr(self, "attributes", ())

    @property
    def granted_roles(self) -> Collection[str] | None:
        """All roles that a guard can grant; None if only its clients' credentials say."""
        return None


def check_issuer_url(option: str, url: object) -> Iterator[Problem]:
    """Yield a warning if somebody on the way to a URL can decide who is admitted."""
    if isinstance(url, str) and url.startswith("http:") and not is_loopback(urlsplit(url).hostname):
        yield Problem((option,), "whoever is on the way there lets in whom he likes; use https")
