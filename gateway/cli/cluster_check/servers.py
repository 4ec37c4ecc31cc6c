"""Servers of others that are asked over HTTP: issuers of keys, applications, registries, back ends
of telemetry."""

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

from .finding import CheckProgress, Finding, failure, ok, warning

REQUEST_TIMEOUT_S = 10.0  # seconds, where nothing else is configured
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
    """most: bytes of the body that are wanted; of a longer one there are none. Redirects are not
    followed, as the gateway does not. Raises Away."""
    # by its transport alone, as guards ask: a client would go by the proxies of the environment
    made = client or httpx.AsyncClient(transport=httpx.AsyncHTTPTransport())
    try:
        async with (
            asyncio.timeout(timeout_s),
            made,
            made.stream(method, url, headers=headers) as came,
        ):
            body = bytearray()
            if max_body_bytes:
                async for piece in came.aiter_bytes():
                    body += piece
                    if len(body) > max_body_bytes:
                        raise ExternalHttpError(f"its answer is longer than {max_body_bytes} bytes")
            return ExternalResponse(came.status_code, bytes(body))
    except TimeoutError:
        raise ExternalHttpError(f"it gives no answer within {timeout_s:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
        reason = str(exc) or type(exc).__name__
        raise ExternalHttpError(f"it cannot be reached: {reason}") from None


async def check_jwks(name: str, guard: Jwt, url: str, steps: CheckProgress) -> Finding:
    subject = f"guard {name}"
    with steps.track(f"{subject} at {url}"):
        try:
            reply = await send_request(
                "GET", url, timeout_s=guard.jwks.timeout, max_body_bytes=MAX_JWKS_BYTES
            )
        except ExternalHttpError as exc:
            return failure(subject, f"its keys cannot be fetched from {url}: {exc}")
    if reply.status != 200:
        return failure(subject, f"{url} answers {reply.status}, and no keys; correct keys")
    try:
        found = KeySet.parse(reply.body)
    except ValueError as exc:
        return failure(subject, f"{url} has no keys: {exc}; correct keys")
    if not len(found):
        return failure(subject, f"{url} lists no key by now; ask the issuer for one")
    able = ", ".join(sorted(found.algorithms))
    if guard.algorithms and not found.algorithms.intersection(guard.algorithms):
        wanted = ", ".join(guard.algorithms)
        return failure(subject, f"the keys of {url} are for {able}, its algorithms are {wanted}")
    return ok(subject, f"{len(found)} key{'s' * (len(found) > 1)} for {able} at {url}")


async def check_application(name: str, guard: Http, steps: CheckProgress) -> Finding:
    """It is shown nothing of a client, and should not know it."""
    subject, url = f"guard {name}", guard.url
    shown = {"x-forwarded-method": "GET", "x-forwarded-uri": "/", "accept": "application/json"}
    with steps.track(f"{subject} at {url}"):
        try:
            status = (await send_request("GET", url, shown, timeout_s=guard.timeout)).status
        except ExternalHttpError as exc:
            return failure(subject, f"the application at {url} cannot be asked: {exc}")
    if status in (401, 403):
        return ok(subject, f"{url} answers {status} to who shows nothing")
    if 200 <= status < 300:
        return warning(subject, f"{url} lets in who shows nothing; answer 401 to those")
    if status == 400:
        return warning(subject, f"{url} answers 400 to who shows nothing; 401 is understood")
    return failure(subject, f"{url} answers {status}; 200, 401 and 403 are understood; correct url")


async def check_registry(
    name: str, catalog: SchemaRegistry, base: str, steps: CheckProgress
) -> Finding:
    subject, url = f"catalog {name}", f"{base.rstrip('/')}/subjects"
    headers = {}
    if catalog.password is not None:
        pair = f"{catalog.username}:{catalog.password.get_secret_value()}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    elif catalog.token is not None:
        headers["authorization"] = f"Bearer {catalog.token.get_secret_value()}"
    with steps.track(f"{subject} at {base}"):
        try:
            verify = True if catalog.tls is None else create_client_context(catalog.tls)
            client = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(verify=verify))
            status = (await send_request("GET", url, headers, client=client)).status
        except (ExternalHttpError, OSError, ValueError) as exc:
            return failure(subject, f"the registry at {base} cannot be asked: {exc}")
    if status in (401, 403):
        which = "its username or password" if headers else "who has no username and password"
        which = "its token" if catalog.token is not None else which
        return failure(subject, f"{base} refuses {which} ({status})")
    if status != 200:
        return failure(subject, f"{url} answers {status}; correct url")
    return ok(subject, f"{base} lists its schemas")


def iter_telemetry_endpoints(settings: Settings) -> Iterator[tuple[str, str]]:
    """The signals that are sent, and the URLs they are sent to."""
    told = settings.telemetry
    for signal, url in (("metrics", told.metrics.otlp), ("traces", told.traces.otlp)):
        if url is not None:
            from gateway.telemetry.otlp import build_endpoint  # 0.2 s

            yield signal, build_endpoint(url, signal)


async def check_telemetry_back_end(
    signal: str, url: str, settings: Settings, steps: CheckProgress
) -> Finding:
    """It is sent none of them: an empty message of protobuf."""
    headers = {name: value.get_secret_value() for name, value in settings.telemetry.headers.items()}
    headers["content-type"] = "application/x-protobuf"
    return await check_push(f"telemetry.{signal}", url, headers, "telemetry.headers", steps)


async def check_influx(section: Influx, steps: CheckProgress) -> Finding:
    """It is sent no line."""
    from gateway.telemetry.influx import build_auth_headers, build_write_url

    token = None if section.token is None else section.token.get_secret_value()
    url = build_write_url(section.url, section.org, section.bucket, section.db)
    return await check_push(
        "telemetry.metrics.influx", url, build_auth_headers(token), "its token", steps
    )


async def check_push(
    subject: str, url: str, headers: Headers, credentials: str, steps: CheckProgress
) -> Finding:
    with steps.track(f"{subject} at {url}"):
        try:
            # what sends them goes by the proxies of the environment
            status = (await send_request("POST", url, headers, client=httpx.AsyncClient())).status
        except ExternalHttpError as exc:
            return failure(subject, f"{url} cannot be sent to: {exc}")
    if status in (401, 403):
        return failure(subject, f"{url} refuses {credentials} ({status})")
    if status == 400:
        return warning(subject, f"{url} takes no empty message (400), and was not sent another")
    if not 200 <= status < 300:
        return failure(subject, f"{url} answers {status}; correct it")
    return ok(subject, f"{url} takes them")


def iter_checks(settings: Settings, steps: CheckProgress) -> Iterator[Coroutine[Any, Any, Finding]]:
    """What is to be awaited, each for a finding."""
    for name, catalog in settings.catalogs.items():
        for url in catalog.url:
            yield check_registry(name, catalog, url, steps)
    for name, guard in settings.guards.items():
        if isinstance(guard, Jwt) and isinstance(guard.keys, str):
            yield check_jwks(name, guard, guard.keys, steps)
        elif isinstance(guard, Http):
            yield check_application(name, guard, steps)
    for signal, url in iter_telemetry_endpoints(settings):
        yield check_telemetry_back_end(signal, url, settings, steps)
    if settings.telemetry.metrics.influx is not None:
        yield check_influx(settings.telemetry.metrics.influx, steps)
