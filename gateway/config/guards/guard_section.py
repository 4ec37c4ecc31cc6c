"""Define the common options of all kinds of guards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from gateway.config.sections.listen import Listen
from gateway.config.types.address import is_loopback
from gateway.config.types.fields import Duration, in_range
from gateway.config.types.section import Problem, Section

ChallengeDuration = Annotated[Duration, in_range(0, 86_400)]
"""How long before a token expires its client is asked for a new one, in seconds."""


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
