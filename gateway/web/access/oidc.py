"""Discover where an issuer has its keys (OpenID Connect Discovery 1.0).

The issuer's metadata is at `<issuer>/.well-known/openid-configuration`. It names the issuer, which
must be the configured one to the letter, and the URL of the keys. A URL that was found is used for
as long as keys are (`jwks.refresh`), and forgotten when the keys cannot be fetched from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from gateway.config import Jwks

from .external_http import ExternalHttp, ExternalHttpError

MAX_METADATA_BYTES = 64 * 1024  # bytes of an issuer's metadata; those of large issuers have 5 KB


def parse_jwks_url(body: bytes, issuer: str) -> str:
    """Return the URL of an issuer's keys.

    Args:
        body: The issuer's metadata.
        issuer: The configured issuer.

    Raises:
        ValueError: It is no metadata, or of another issuer, or its URL cannot be used.
    """
    try:
        metadata = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(metadata, Mapping):
        raise ValueError("it is no JSON object")
    named = metadata.get("issuer")
    if named != issuer:  # 4.3: otherwise anyone who is asked could vouch for another issuer
        raise ValueError(
            f"it is of the issuer {str(named)[:200]!r}, not {issuer!r}; correct issuer"
        )
    url = metadata.get("jwks_uri")
    if not isinstance(url, str):
        raise ValueError("it has no jwks_uri")
    scheme = urlsplit(url).scheme
    if scheme != "https" and not (scheme == "http" and issuer.startswith("http://")):
        raise ValueError("its jwks_uri is no https URL")
    return url


class IssuerDiscovery:
    """Finds the URL of an issuer's keys.

    Created by `JwtGuard`, and used by its `RemoteKeySource`, one request at a time.
    """

    def __init__(
        self,
        issuer: str,
        metadata_url: str,
        settings: Jwks,
        external_http: ExternalHttp,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it without asking the issuer.

        Args:
            issuer: The configured issuer.
            metadata_url: Where it has its metadata.
            settings: The section `jwks` of the guard.
            external_http: Sends the requests.
            clock: Returns the time in seconds of a monotonic clock.
        """
        self._issuer = issuer
        self._metadata_url = metadata_url
        self._settings = settings
        self._external_http = external_http
        self._clock = clock
        self._url: str | None = None
        self._found_at = 0.0

    async def find_jwks_url(self) -> str:
        """Return the URL of the keys.

        Raises:
            ExternalHttpError: The issuer cannot be asked, or its metadata cannot be used.
        """
        if self._url is None or self._clock() - self._found_at >= self._settings.refresh:
            response = await self._external_http.get(
                self._metadata_url,
                timeout_s=self._settings.timeout,
                max_body_bytes=MAX_METADATA_BYTES,
            )
            if response.status != 200:
                raise ExternalHttpError(f"{self._metadata_url} answers {response.status}")
            try:
                self._url = parse_jwks_url(response.body, self._issuer)
            except ValueError as exc:
                raise ExternalHttpError(f"{self._metadata_url} cannot be used: {exc}") from None
            self._found_at = self._clock()
        return self._url

    def forget(self) -> None:
        """Ask the issuer again next time."""
        self._url = None
