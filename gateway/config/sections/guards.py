"""Define the section `guards`: how the gateway identifies a client.

A guard verifies a signed token (`jwt`), asks the application (`http`), reads a client certificate
(`x509`), or knows the users that the file lists (`inline`).

To add a kind, write a subclass of `GuardSection`, which has its options and their
meaning for other sections, and enter it in `GUARD_KINDS`; then write a subclass of
`gateway.web.access.guard.Guard`, which admits clients and describes for documents how they identify
themselves, and enter it in `gateway.web.access.admission.GUARD_LOADERS`. They are two classes
because programs without HTTP, such as the pipeline, read the configuration, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from gateway.config.types.address import Url
from gateway.config.types.fields import (
    Duration,
    Flag,
    SecretText,
    Text,
    in_range,
    matching,
)
from gateway.config.types.forms import Kinds
from gateway.config.types.section import Problem, Section, as_list, as_mapping

from .guard_section import (
    BEARER_CREDENTIALS,
    ChallengeDuration,
    Credentials,
    GuardSection,
    HeaderName,
    QueryName,
    check_issuer_url,
)
from .jwt import Jwt
from .listen import Listen

FORWARDED_HEADERS = frozenset({"x-forwarded-method", "x-forwarded-uri"})
"""Headers that the gateway itself sends to the application.

They cannot be forwarded from clients, because the application could not distinguish them.
"""


class Forward(Section):
    """The parts of a request that are forwarded to the application.

    A request that has none of them is refused without asking the application.
    """

    headers: tuple[HeaderName, ...] = Field(
        default=("cookie", "authorization"),
        description="Headers to forward; the token of a WebSocket's subprotocol is "
        "`authorization`. A request with nothing to forward is refused.",
    )
    query: tuple[QueryName, ...] = Field(default=(), description="Query parameters to forward.")


class Http(GuardSection):
    """A guard that asks the application, by a GET request.

    The application admits a client with 200 and a JSON object of `identity`, `roles`, `attributes`
    and `expires` (all but `identity` are optional), and denies it with 401 or 403.
    """

    type: Literal["http"] = Field(description="The kind of guard.")
    url: Url = Field(description="The URL of the GET request.")
    forward: Forward = Field(
        default=Forward(), description="What the application gets of a client's request."
    )
    timeout: Annotated[Duration, in_range(0.1, 60)] = Field(
        default=2.0, description="How long the application may take."
    )
    cache: Annotated[Duration, in_range(0, 3600)] = Field(
        default=10.0,
        description="How long a response is used for equal requests; 0s for never.",
    )
    attributes: tuple[Text, ...] = Field(
        default=(), description="The attributes to keep of its responses."
    )
    challenge: ChallengeDuration = 30.0

    @property
    def secret_parameters(self) -> Iterable[str]:
        return self.forward.query

    @property
    def credential_headers(self) -> Iterable[str]:
        return self.forward.headers

    def iter_warnings(self) -> Iterator[Problem]:
        yield from check_issuer_url("url", self.url)

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        forward = as_mapping(raw.get("forward"))
        if forward.get("headers") in ([], ()) and not forward.get("query"):
            yield Problem(("forward",), "forwards nothing; add headers or query")
        for index, name in enumerate(as_list(forward.get("headers"))):
            if isinstance(name, str) and name.lower() in FORWARDED_HEADERS:
                what = f"{name.lower()} is sent to the application by the gateway itself; remove it"
                yield Problem(("forward", "headers", index), what)


class User(Section):
    """A user of an inline guard: with a password, a token or both."""

    password: SecretText | None = Field(
        default=None, description="Password of Basic authentication."
    )
    token: SecretText | None = Field(default=None, description="A bearer token.")
    roles: tuple[Text, ...] = Field(default=(), description="The user's roles.")
    attributes: dict[Text, Text] = Field(default={}, description="The user's attributes, by name.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "password" not in raw and "token" not in raw:
            yield Problem((), "has neither password nor token; add one", is_key=True)


UserName: TypeAlias = Annotated[
    Text, matching(r"[^:]+", "is no name of a user; leave out ':' (RFC 7617 2)")
]


class Inline(GuardSection):
    """A guard that knows the users that this file lists, for development.

    It is refused where other machines can connect, unless it is `exposed`.
    """

    type: Literal["inline"] = Field(description="The kind of guard.")
    users: dict[UserName, User] = Field(
        description="Users by name; the name is the identity.",
        json_schema_extra={"minProperties": 1},
    )
    credentials: Credentials = Field(
        default=BEARER_CREDENTIALS, description="Where in a request the token is."
    )
    exposed: Flag = Field(
        default=False, description="Allow this guard even if other machines can connect."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if raw.get("users") in ({}, [], ()):
            yield Problem(("users",), "is empty; add one")

    @property
    def is_for_development(self) -> bool:
        return not self.exposed

    @property
    def secret_parameters(self) -> Iterable[str]:
        return self.credentials.query

    @property
    def credential_headers(self) -> Iterable[str]:
        return self.credentials.headers

    @property
    def attribute_names(self) -> Iterable[str]:
        return [name for user in self.users.values() for name in user.attributes]

    @property
    def granted_roles(self) -> Collection[str] | None:
        return {role for user in self.users.values() for role in user.roles}


CertificateField = Literal[
    "CN", "O", "OU", "C", "L", "ST", "DC", "UID", "serialNumber", "email", "dns", "uri"
]
"""A field of a certificate: `email`, `dns` and `uri` are alternative names of the subject
(RFC 5280 4.2.1.6), the others are attributes of its distinguished name."""


class X509(GuardSection):
    """A guard that reads the client certificate, which TLS has verified (`listen.tls.ca`)."""

    has_ambient_credentials: ClassVar[bool] = True

    type: Literal["x509"] = Field(description="The kind of guard.")
    identity: CertificateField = Field(default="CN", description="The field that names the client.")
    roles: CertificateField | None = Field(
        default=None, description="The field that has its roles."
    )
    attributes: dict[Text, CertificateField] = Field(
        default={}, description="Attributes of the client, each with the field of its value."
    )
    forwarded: Flag = Field(
        default=False,
        description="Trust X-Forwarded-Client-Cert of the proxies in `listen.forwarded`, which "
        "must remove that of clients.",
    )

    def check_listen(self, name: str, listen: Listen) -> Iterator[Problem]:
        """Yield the problem of a guard that sees no certificate, or one that anybody could send."""
        if not self.forwarded:
            if listen.tls is None or listen.tls.ca is None:
                what = f"guard '{name}' sees no certificate: clients are not asked for any"
                yield Problem((), f"{what}; add listen.tls.ca", is_key=True)
        elif isinstance(listen.forwarded, bool):
            what = "anybody could send the certificate of another"
            hint = "list the proxies in listen.forwarded"
            yield Problem(("forwarded",), f"{what}; {hint}", is_key=True)


GUARD_KINDS: Kinds[GuardSection] = Kinds(
    "guard", {"jwt": Jwt, "http": Http, "x509": X509, "inline": Inline}
)
"""The sections of all kinds of guards, by their `type`."""

AnyGuardSection: TypeAlias = Annotated[GuardSection, GUARD_KINDS]
"""The section of a guard of any kind, which its `type` names."""
