"""Define the common options of all kinds of guards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from gateway.config.types.address import is_loopback
from gateway.config.types.fields import Duration, in_range
from gateway.config.types.section import Problem, Section, as_list, as_mapping

ChallengeDuration = Annotated[Duration, in_range(0, 86_400)]
"""How long before a token expires its client is asked for a new one, in seconds."""


class GuardSection(Section):
    """A guard of any kind: its options, and their meaning for other sections.

    A kind has an option `type` with its name. The class methods are asked before validation, so any
    value that they get may be invalid.
    """

    is_for_development: ClassVar[bool] = False
    """Whether it is refused where other machines can connect, unless it is `exposed`."""
    has_ambient_credentials: ClassVar[bool] = False
    """Whether browsers send its credentials by themselves, without a cookie or a header: pages of
    other sites could write with them."""

    @property
    def challenge_lead(self) -> float | None:
        """Seconds before the expiry of credentials when new ones are asked for; None for never."""
        return None

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

    @classmethod
    def check_listen(
        cls, name: str, raw: Mapping[Any, Any], listen: Mapping[Any, Any]
    ) -> Iterator[Problem]:
        """Yield the problems between a guard and the section `listen`, both as written."""
        return iter(())

    @classmethod
    def list_attributes(cls, raw: Mapping[Any, Any]) -> Iterable[str]:
        """Return the names of the attributes that a guard knows of clients, for templates."""
        attributes = raw.get("attributes")
        return [str(name) for name in as_list(attributes) or as_mapping(attributes)]

    @classmethod
    def list_parameters(cls, raw: Mapping[Any, Any]) -> Iterable[str]:
        """Return the parameters of the query that contain credentials, as written."""
        return [str(name) for name in as_mapping(as_mapping(raw.get("credentials")).get("query"))]

    @classmethod
    def list_roles(cls, raw: Mapping[Any, Any]) -> list[Any] | None:
        """Return all roles that a guard can grant; None if only its clients' credentials say."""
        return None


def check_issuer_url(option: str, url: object) -> Iterator[Problem]:
    """Yield a warning if somebody on the way to a URL can decide who is admitted."""
    if isinstance(url, str) and url.startswith("http:") and not is_loopback(urlsplit(url).hostname):
        yield Problem((option,), "whoever is on the way there lets in whom he likes; use https")
