"""Define the guard `http`, which asks the application who a client is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.config.types.address import Url
from gateway.config.types.fields import Duration, Text, in_range
from gateway.config.types.section import Problem, Section, as_list, as_mapping

from .credentials import HeaderName, QueryName
from .guard_section import ChallengeDuration, GuardSection, check_issuer_url

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
        description="Headers to forward. The token of a WebSocket's subprotocol is sent as "
        "`authorization`. For applications with sessions.",
    )
    query: tuple[QueryName, ...] = Field(
        default=(), description="Query parameters to forward. For tickets that are valid once."
    )


class Http(GuardSection):
    """A guard that asks the application, by a GET request.

    The application admits a client with 200 and a JSON object of `identity`, `roles`, `attributes`
    and `expires` (all but `identity` are optional), and denies it with 401 or 403.
    """

    type: Literal["http"] = Field(description="The kind of guard. For access control.")
    url: Url = Field(description="The URL of the GET request. For applications with sessions.")
    forward: Forward = Field(
        default=Forward(),
        description="What the application gets of a client's request. For applications with "
        "sessions.",
    )
    timeout: Annotated[Duration, in_range(0.1, 60)] = Field(
        default=2.0,
        description="How long the application may take to respond; the client waits meanwhile. For "
        "operators.",
    )
    cache: Annotated[Duration, in_range(0, 3600)] = Field(
        default=10.0,
        description="How long a response is used for equal requests; 0s asks each time. For "
        "applications under load.",
    )
    attributes: tuple[Text, ...] = Field(
        default=(), description="The attributes to keep of its responses. For templates."
    )
    challenge: ChallengeDuration = Field(
        default=30.0,
        description="How long before the token expires the client is asked for a new one. For long "
        "streams.",
    )

    @property
    def challenge_lead(self) -> float | None:
        return self.challenge

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
