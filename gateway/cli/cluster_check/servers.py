"""Check the HTTP servers that a configuration names.

These are issuers of keys, applications that decide for a guard, schema registries and telemetry
back ends. Each is sent the request that the gateway would send, without any data.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import httpx

from gateway.config import Http, Influx, Jwt, SchemaRegistry, Settings
from gateway.config.types.tls_context import create_client_context
from gateway.web.access.external_http import ExternalHttpError, ExternalResponse
from gateway.web.access.jwks import MAX_JWKS_BYTES, KeySet
from gateway.web.access.oidc import MAX_METADATA_BYTES, parse_jwks_url

from .finding import CheckProgress, Finding, failure, ok, warning

REQUEST_TIMEOUT_S = 10.0  # seconds, where the configuration has no timeout
Headers = Mapping[str, str]


async def send_request(
    method: str,
    url: str,
    headers: Headers | None = None,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
    max_body_bytes: int = 0,
    client: httpx.AsyncClient | None = None,
) -> ExternalResponse:
    """Send a request. Redirects are not followed, because the gateway does not follow them either.

    Args:
        method: The HTTP method.
        url: The URL.
        headers: Headers of the request.
        timeout_s: Seconds for the whole response.
        max_body_bytes: The largest body that is accepted; 0 to ignore the body.
        client: The client to send it by; it is closed afterwards.

    Raises:
        ExternalHttpError: The server cannot be reached, is too slow, or its body is too long.
    """
    # With an explicit transport, httpx ignores the proxies of the environment, as guards do.
    http = client or httpx.AsyncClient(transport=httpx.AsyncHTTPTransport())
    try:
        async with (
            asyncio.timeout(timeout_s),
            http,
            http.stream(method, url, headers=headers) as response,
        ):
            body = bytearray()
            if max_body_bytes:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > max_body_bytes:
                        raise ExternalHttpError(
                            f"its response is longer than {max_body_bytes} bytes"
                        )
            return ExternalResponse(response.status_code, bytes(body))
    except TimeoutError:
        raise ExternalHttpError(f"it does not answer within {timeout_s:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
        reason = str(exc) or type(exc).__name__
        raise ExternalHttpError(f"it cannot be reached: {reason}") from None


async def check_jwks(name: str, guard: Jwt, url: str, steps: CheckProgress) -> Finding:
    """Check that an issuer has keys that a guard can use (RFC 7517).

    Args:
        name: The guard's name.
        guard: The guard.
        url: Where the issuer has its keys.
        steps: Where the progress is tracked.
    """
    subject = f"guard {name}"
    with steps.track(f"{subject} at {url}"):
        try:
            response = await send_request(
                "GET", url, timeout_s=guard.jwks.timeout, max_body_bytes=MAX_JWKS_BYTES
            )
        except ExternalHttpError as exc:
            return failure(subject, f"its keys cannot be fetched from {url}: {exc}")
    if response.status != 200:
        return failure(subject, f"{url} answers {response.status} without keys; correct keys")
    try:
        keys = KeySet.parse(response.body)
    except ValueError as exc:
        return failure(subject, f"{url} has no keys: {exc}; correct keys")
    if not len(keys):
        return failure(subject, f"{url} lists no key yet; ask the issuer for one")
    algorithms = ", ".join(sorted(keys.algorithms))
    if guard.algorithms and not keys.algorithms.intersection(guard.algorithms):
        accepted = ", ".join(guard.algorithms)
        what = f"the keys of {url} are for {algorithms}, but the guard accepts {accepted}"
        return failure(subject, f"{what}; correct algorithms")
    return ok(subject, f"{len(keys)} key{'s' * (len(keys) > 1)} for {algorithms} at {url}")


async def check_issuer(name: str, guard: Jwt, steps: CheckProgress) -> Finding:
    """Check that an issuer names its keys in its metadata, and has keys that a guard can use.

    Args:
        name: The guard's name.
        guard: The guard.
        steps: Where the progress is tracked.
    """
    subject, url = f"guard {name}", guard.metadata_url
    with steps.track(f"{subject} at {url}"):
        try:
            response = await send_request(
                "GET", url, timeout_s=guard.jwks.timeout, max_body_bytes=MAX_METADATA_BYTES
            )
        except ExternalHttpError as exc:
            return failure(subject, f"the issuer's metadata cannot be fetched from {url}: {exc}")
    if response.status != 200:
        hint = "correct issuer, or add keys"
        return failure(subject, f"{url} answers {response.status} without metadata; {hint}")
    try:
        keys_url = parse_jwks_url(response.body, guard.issuer or "")
    except ValueError as exc:
        return failure(subject, f"{url} cannot be used: {exc}")
    return await check_jwks(name, guard, keys_url, steps)


async def check_application(name: str, guard: Http, steps: CheckProgress) -> Finding:
    """Check that an application refuses a request without credentials.

    Args:
        name: The guard's name.
        guard: The guard.
        steps: Where the progress is tracked.
    """
    subject, url = f"guard {name}", guard.url
    headers = {"x-forwarded-method": "GET", "x-forwarded-uri": "/", "accept": "application/json"}
    with steps.track(f"{subject} at {url}"):
        try:
            status = (await send_request("GET", url, headers, timeout_s=guard.timeout)).status
        except ExternalHttpError as exc:
            return failure(subject, f"the application at {url} does not respond: {exc}")
    if status in (401, 403):
        return ok(subject, f"{url} answers {status} to a request without credentials")
    if 200 <= status < 300:
        return warning(subject, f"{url} admits a request without credentials; it should answer 401")
    if status == 400:
        return warning(
            subject, f"{url} answers 400 to a request without credentials; it should answer 401"
        )
    return failure(
        subject, f"{url} answers {status}, but only 200, 401 and 403 are understood; correct url"
    )


async def check_registry(
    name: str, catalog: SchemaRegistry, base: str, steps: CheckProgress
) -> Finding:
    """Check that a schema registry lists its subjects.

    Args:
        name: The catalog's name.
        catalog: The catalog.
        base: One of its URLs.
        steps: Where the progress is tracked.
    """
    subject, url = f"catalog {name}", f"{base.rstrip('/')}/subjects"
    headers = {}
    if catalog.password is not None:
        userinfo = f"{catalog.username}:{catalog.password.get_secret_value()}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(userinfo).decode()}"
    elif catalog.token is not None:
        headers["authorization"] = f"Bearer {catalog.token.get_secret_value()}"
    with steps.track(f"{subject} at {base}"):
        try:
            verify = True if catalog.tls is None else create_client_context(catalog.tls)
            client = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(verify=verify))
            status = (await send_request("GET", url, headers, client=client)).status
        except (ExternalHttpError, OSError, ValueError) as exc:
            return failure(subject, f"the registry at {base} does not respond: {exc}")
    if status in (401, 403):
        which = "the username or password" if headers else "a request without credentials"
        which = "the token" if catalog.token is not None else which
        return failure(subject, f"{base} refuses {which} ({status})")
    if status != 200:
        return failure(subject, f"{url} answers {status}; correct url")
    return ok(subject, f"{base} lists its schemas")


def iter_telemetry_endpoints(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the signals that are sent by OTLP, each with the URL it is sent to."""
    telemetry = settings.telemetry
    for signal, url in (("metrics", telemetry.metrics.otlp), ("traces", telemetry.traces.otlp)):
        if url is not None:
            from gateway.telemetry.otlp import build_endpoint  # takes 0.2 s

            yield signal, build_endpoint(url, signal)


async def check_telemetry_back_end(
    signal: str, url: str, settings: Settings, steps: CheckProgress
) -> Finding:
    """Check that a telemetry back end accepts an empty message of protobuf.

    Args:
        signal: `metrics` or `traces`.
        url: Where the signal is sent.
        settings: The configuration.
        steps: Where the progress is tracked.
    """
    headers = {name: value.get_secret_value() for name, value in settings.telemetry.headers.items()}
    headers["content-type"] = "application/x-protobuf"
    return await check_push(f"telemetry.{signal}", url, headers, "telemetry.headers", steps)


async def check_influx(section: Influx, steps: CheckProgress) -> Finding:
    """Check that InfluxDB accepts a request without lines."""
    from gateway.telemetry.influx import build_auth_headers, build_write_url

    token = None if section.token is None else section.token.get_secret_value()
    url = build_write_url(section.url, section.org, section.bucket, section.db)
    return await check_push(
        "telemetry.metrics.influx", url, build_auth_headers(token), "the token", steps
    )


async def check_push(
    subject: str, url: str, headers: Headers, credentials: str, steps: CheckProgress
) -> Finding:
    """Check that a server accepts an empty POST request.

    Args:
        subject: The subject of the finding.
        url: The URL.
        headers: The headers of the request.
        credentials: What the server refuses if it answers 401 or 403, for the finding.
        steps: Where the progress is tracked.
    """
    with steps.track(f"{subject} at {url}"):
        try:
            # The exporters use the proxies of the environment, so this client does, too.
            status = (await send_request("POST", url, headers, client=httpx.AsyncClient())).status
        except ExternalHttpError as exc:
            return failure(subject, f"{url} does not respond: {exc}")
    if status in (401, 403):
        return failure(subject, f"{url} refuses {credentials} ({status})")
    if status == 400:
        return warning(subject, f"{url} answers 400 to an empty message; no other was tried")
    if not 200 <= status < 300:
        return failure(subject, f"{url} answers {status}; correct the URL")
    return ok(subject, f"{url} accepts them")


def iter_checks(settings: Settings, steps: CheckProgress) -> Iterator[Coroutine[Any, Any, Finding]]:
    """Yield the checks of all servers that a configuration names."""
    for name, catalog in settings.catalogs.items():
        for url in catalog.url:
            yield check_registry(name, catalog, url, steps)
    for name, guard in settings.guards.items():
        if isinstance(guard, Jwt) and isinstance(guard.keys, str):
            yield check_jwks(name, guard, guard.keys, steps)
        elif isinstance(guard, Jwt) and guard.keys is None:
            yield check_issuer(name, guard, steps)
        elif isinstance(guard, Http):
            yield check_application(name, guard, steps)
    for signal, url in iter_telemetry_endpoints(settings):
        yield check_telemetry_back_end(signal, url, settings, steps)
    if settings.telemetry.metrics.influx is not None:
        yield check_influx(settings.telemetry.metrics.influx, steps)
