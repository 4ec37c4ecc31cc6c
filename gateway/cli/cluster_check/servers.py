"""Check the servers and the files of TLS that a configuration names.

The requests are those of the gateway, without any data.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509

from gateway.config import Http, Jwt, ListenTls, SchemaRegistry, Settings, Tls
from gateway.config.sections.security import create_client_context
from gateway.config.types.address import describe_ssl_error
from gateway.http_client import HTTP_ERRORS, describe_http_failure
from gateway.web.access.external_http import ExternalHttp, ExternalHttpError
from gateway.web.access.jwks import build_metadata_url, request_jwks_url, request_keys

from .finding import CheckError, CheckProgress, Finding, FindingState, failure, judge, ok, warning

REQUEST_TIMEOUT_S = 10.0  # seconds, where the configuration has no timeout
Headers = Mapping[str, str]


async def send_request(
    method: str,
    url: str,
    headers: Headers,
    *,
    to: str,
    timeout_s: float = REQUEST_TIMEOUT_S,
    client: httpx.AsyncClient | None = None,
) -> int:
    """Send a request, and return the status. Redirects are not followed, as by the gateway.

    Raises:
        CheckError: The server, which messages call `to`, cannot be reached or is too slow.
    """
    # With an explicit transport, httpx ignores the proxies of the environment, as guards do.
    http = client or httpx.AsyncClient(transport=httpx.AsyncHTTPTransport())
    try:
        async with (
            asyncio.timeout(timeout_s),
            http,
            http.stream(method, url, headers=headers) as response,
        ):
            return response.status_code
    except TimeoutError:
        reason = f"it does not answer within {timeout_s:g} s"
    except HTTP_ERRORS as exc:
        reason = describe_http_failure(exc, url)
    raise CheckError(f"{to} does not respond: {reason}")


async def check_keys(guard: Jwt, issuer: str) -> str:
    """Check that an issuer, if keys are discovered, has keys that a guard can use (RFC 7517)."""
    external_http = ExternalHttp()
    url = guard.keys if isinstance(guard.keys, str) else None
    try:
        url = url or await request_jwks_url(issuer, guard.jwks, external_http)
        keys = await request_keys(url, guard.jwks, external_http)
    except ExternalHttpError as exc:
        raise CheckError(str(exc)) from None
    finally:
        await external_http.close()
    if not len(keys):
        raise CheckError(f"{url} lists no key yet; ask the issuer for one")
    algorithms = ", ".join(sorted(keys.algorithms))
    if guard.algorithms and not keys.algorithms.intersection(guard.algorithms):
        raise CheckError(
            f"the keys of {url} are for {algorithms}, but the guard accepts "
            f"{', '.join(guard.algorithms)}; correct algorithms"
        )
    return f"{len(keys)} key{'s' * (len(keys) > 1)} for {algorithms} at {url}"


async def check_application(guard: Http) -> str:
    url = guard.url
    headers = {"x-forwarded-method": "GET", "x-forwarded-uri": "/", "accept": "application/json"}
    status = await send_request(
        "GET", url, headers, to=f"the application at {url}", timeout_s=guard.timeout
    )
    if status in (401, 403):
        return f"{url} answers {status} to a request without credentials"
    if 200 <= status < 300 or status == 400:
        does = "answers 400 to" if status == 400 else "admits"
        what = f"{url} {does} a request without credentials; it should answer 401"
        raise CheckError(what, FindingState.WARNING)
    raise CheckError(
        f"{url} answers {status}, but only 200, 401 and 403 are understood; correct url"
    )


async def check_registry(catalog: SchemaRegistry, base: str) -> str:
    url = f"{base.rstrip('/')}/subjects"
    headers = {}
    if catalog.password is not None:
        userinfo = f"{catalog.username}:{catalog.password.get_secret_value()}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(userinfo).decode()}"
    elif catalog.token is not None:
        headers["authorization"] = f"Bearer {catalog.token.get_secret_value()}"
    to = f"the registry at {base}"
    try:
        verify = True if catalog.tls is None else create_client_context(catalog.tls)
    except (OSError, ValueError) as exc:
        raise CheckError(f"{to} does not respond: {exc}") from None
    client = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(verify=verify))
    status = await send_request("GET", url, headers, to=to, client=client)
    if status in (401, 403):
        which = "the username or password" if headers else "a request without credentials"
        which = "the token" if catalog.token is not None else which
        raise CheckError(f"{base} refuses {which} ({status})")
    if status != 200:
        raise CheckError(f"{url} answers {status}; correct url")
    return f"{base} lists its schemas"


async def check_push(url: str, headers: Headers, credentials: str) -> str:
    """Check that a server accepts an empty POST request; findings name the `credentials`."""
    # The exporters use the proxies of the environment, so this client does, too.
    status = await send_request("POST", url, headers, to=url, client=httpx.AsyncClient())
    if status in (401, 403):
        raise CheckError(f"{url} refuses {credentials} ({status})")
    if status == 400:
        what = f"{url} answers 400 to an empty message; no other was tried"
        raise CheckError(what, FindingState.WARNING)
    if not 200 <= status < 300:
        raise CheckError(f"{url} answers {status}; correct the URL")
    return f"{url} accepts them"


def iter_checks(settings: Settings, steps: CheckProgress) -> Iterator[Coroutine[Any, Any, Finding]]:
    for subject, place, check in _iter_server_checks(settings):
        yield judge(subject, f"at {place}", check, steps)


def _iter_server_checks(
    settings: Settings,
) -> Iterator[tuple[str, str, Coroutine[Any, Any, str]]]:
    """Yield the subject, the place and the check of each server."""
    for name, catalog in settings.catalogs.items():
        for url in catalog.url:
            yield f"catalog {name}", url, check_registry(catalog, url)
    for name, guard in settings.guards.items():
        if isinstance(guard, Jwt) and (guard.keys is None or isinstance(guard.keys, str)):
            for issuer in guard.issuer if guard.keys is None else ("",):
                place = guard.keys or build_metadata_url(issuer)
                yield f"guard {name}", place, check_keys(guard, issuer)
        elif isinstance(guard, Http):
            yield f"guard {name}", guard.url, check_application(guard)
    telemetry, influx = settings.telemetry, settings.telemetry.metrics.influx
    endpoints = {"metrics": telemetry.metrics.otlp, "traces": telemetry.traces.otlp}
    for signal, endpoint in endpoints.items():
        if endpoint is not None:
            from gateway.telemetry.otlp import build_endpoint

            headers = {name: value.get_secret_value() for name, value in telemetry.headers.items()}
            headers["content-type"] = "application/x-protobuf"
            url = build_endpoint(endpoint, signal)
            yield f"telemetry.{signal}", url, check_push(url, headers, "telemetry.headers")
    if influx is not None:
        from gateway.telemetry.influx import build_auth_headers, build_write_url

        token = None if influx.token is None else influx.token.get_secret_value()
        url = build_write_url(influx.url, influx.org, influx.bucket, influx.db)
        check = check_push(url, build_auth_headers(token), "the token")
        yield "telemetry.metrics.influx", url, check


EXPIRY_WARNING_PERIOD = timedelta(days=14)


def check_certificates(settings: Settings, now: datetime | None = None) -> Iterator[Finding]:
    now = now or datetime.now(UTC)
    sections: dict[str, Tls | ListenTls | None] = {"listen.tls": settings.listen.tls}
    for name, kafka in settings.clusters.items():
        option = f"kafka.{name}" if name else "kafka"
        sections[f"{option}.security.tls"] = kafka.security.tls
    for option, tls in sections.items():
        if tls is not None and tls.certificate is not None and tls.key is not None:
            secret = tls.key_password if isinstance(tls, Tls) else None
            password = None if secret is None else secret.get_secret_value()
            yield check_key_pair(f"{option}.certificate", tls.certificate, tls.key, password, now)
        if tls is not None and tls.ca is not None:
            yield check_authorities(f"{option}.ca", tls.ca, now)


def check_key_pair(
    option: str, certificate: Path, key: Path, password: str | None, now: datetime
) -> Finding:
    subject = f"{option} {certificate}"
    try:
        # Without a callback for the password, OpenSSL would ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, password=lambda: password or ""
        )
        chain = _read_certificates(certificate)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            return failure(
                subject, f"{key} is the key of another certificate; name the key of this one"
            )
        return failure(subject, f"it cannot be used with the key {key}: {describe_ssl_error(exc)}")
    except (OSError, ValueError) as exc:
        return failure(subject, f"it or its key {key} cannot be read: {_describe_error(exc)}")
    for each in chain:
        if each.not_valid_before_utc > now:
            day = f"{each.not_valid_before_utc:%Y-%m-%d}"
            return failure(subject, f"{_format_subject(each)} is valid from {day}")
        if each.not_valid_after_utc <= now:
            return failure(
                subject, f"{_format_subject(each)} expired on {_format_expiry(each)}; renew it"
            )
    first = min(chain, key=lambda each: each.not_valid_after_utc)
    if first.not_valid_after_utc - now < EXPIRY_WARNING_PERIOD:
        return warning(
            subject, f"{_format_subject(first)} expires on {_format_expiry(first)}; renew it"
        )
    return ok(subject, f"valid until {_format_expiry(first)}, and the key belongs to it")


def check_authorities(option: str, file: Path, now: datetime) -> Finding:
    """Check a file of authorities. It fails only if all of them expired."""
    subject = f"{option} {file}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
        authorities = _read_certificates(file)
    except ssl.SSLError as exc:
        return failure(subject, describe_ssl_error(exc))
    except (OSError, ValueError) as exc:
        return failure(subject, f"it cannot be read: {_describe_error(exc)}")
    expired = [each for each in authorities if each.not_valid_after_utc <= now]
    if len(expired) == len(authorities):
        return failure(subject, f"all of its authorities expired ({_format_subjects(expired)})")
    if expired:
        return warning(
            subject, f"{len(expired)} of {len(authorities)} expired: {_format_subjects(expired)}"
        )
    first = min(authorities, key=lambda each: each.not_valid_after_utc)
    count = f"{len(authorities)} authorit{'y' if len(authorities) == 1 else 'ies'}"
    if first.not_valid_after_utc - now < EXPIRY_WARNING_PERIOD:
        return warning(subject, f"{_format_subject(first)} expires on {_format_expiry(first)}")
    return ok(subject, f"{count}, valid until {_format_expiry(first)}")


def _read_certificates(file: Path) -> Sequence[x509.Certificate]:
    return x509.load_pem_x509_certificates(file.read_bytes())


def _describe_error(exc: OSError | ValueError) -> str:
    return getattr(exc, "strerror", None) or str(exc)


def _format_subject(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or "it"  # a subject may be empty


def _format_subjects(certificates: Iterable[x509.Certificate]) -> str:
    return "; ".join(_format_subject(each) for each in list(certificates)[:5])


def _format_expiry(certificate: x509.Certificate) -> str:
    return f"{certificate.not_valid_after_utc:%Y-%m-%d}"
