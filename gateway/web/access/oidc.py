"""Discover where an issuer has its keys (OpenID Connect Discovery 1.0).

The metadata at `<issuer>/.well-known/openid-configuration` names the issuer, which must be the
configured one to the letter, and the URL of the keys. A URL that was found is used for as long as
keys are (`jwks.refresh`), and forgotten when the keys cannot be fetched from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from gateway.config import Jwks

from .external_http import ExternalHttp, ExternalHttpError, parse_json

MAX_METADATA_BYTES = 64 * 1024  # bytes of an issuer's metadata; those of large issuers have 5 KB


def parse_jwks_url(body: bytes, issuer: str) -> str:
    """Return the URL of an issuer's keys, or raise a `ValueError` if it cannot be used."""
    hint = "correct issuer, or add keys"
    try:
        metadata = parse_json(body)
    except ValueError as exc:
        raise ValueError(f"{exc}; {hint}") from None
    if not isinstance(metadata, Mapping):
        raise ValueError(f"it is no JSON object; {hint}")
    named = metadata.get("issuer")
    if named != issuer:  # 4.3: otherwise anyone who is asked could vouch for another issuer
        raise ValueError(
            f"it is of the issuer {str(named)[:200]!r}, not {issuer!r}; correct issuer"
        )
    url = metadata.get("jwks_uri")
    if not isinstance(url, str):
        raise ValueError(f"it has no jwks_uri; {hint}")
    try:
        parts = urlsplit(url)
        is_url = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        is_url = False
    if not is_url:
        raise ValueError(f"its jwks_uri {url[:200]!r} is no URL; ask the issuer to correct it")
    if parts.scheme != "https" and not (parts.scheme == "http" and issuer.startswith("http://")):
        raise ValueError("its jwks_uri is no https URL; ask the issuer to correct it")
    return url


def build_metadata_url(issuer: str) -> str:
    return f"{issuer.rstrip('/')}/.well-known/openid-configuration"


async def request_jwks_url(issuer: str, settings: Jwks, external_http: ExternalHttp) -> str:
    """Ask an issuer for the URL of its keys. An `ExternalHttpError` says what to do."""
    metadata_url = build_metadata_url(issuer)
    try:
        response = await external_http.get(
            metadata_url, timeout_s=settings.timeout, max_body_bytes=MAX_METADATA_BYTES
        )
    except ExternalHttpError as exc:
        what = "the issuer's metadata cannot be fetched"
        raise ExternalHttpError(f"{what} from {metadata_url}: {exc}") from None
    if response.status != 200:
        what = f"{metadata_url} answers {response.describe_status()} without metadata"
        raise ExternalHttpError(f"{what}; correct issuer, or add keys")
    try:
        return parse_jwks_url(response.body, issuer)
    except ValueError as exc:
        raise ExternalHttpError(f"{metadata_url} cannot be used: {exc}") from None


class IssuerDiscovery:
    """Finds the URL of an issuer's keys, for one request at a time."""

    def __init__(
        self,
        issuer: str,
        settings: Jwks,
        external_http: ExternalHttp,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._settings = settings
        self._external_http = external_http
        self._clock = clock
        self._url: str | None = None
        self._found_at = 0.0

    async def find_jwks_url(self) -> str:
        if self._url is None or self._clock() - self._found_at >= self._settings.refresh:
            self._url = await request_jwks_url(self._issuer, self._settings, self._external_http)
            self._found_at = self._clock()
        return self._url

    def forget(self) -> None:
        self._url = None
