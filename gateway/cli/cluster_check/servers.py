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

from gateway.config import Http, Influx, Jwt, SchemaRegistry, Settings, Tls
from gateway.config.sections.security import create_client_context
from gateway.config.types.address import describe_ssl_error
from gateway.http_client import HTTP_ERRORS, describe_http_failure
from gateway.web.access.external_http import ExternalHttp, ExternalHttpError
from gateway.web.access.jwks import build_metadata_url, request_jwks_url, request_keys

from .finding import CheckProgress, Finding, failure, ok, warning

REQUEST_TIMEOUT_S = 10.0  # seconds, where the configuration has no timeout
Headers = Mapping[str, str]


async def send_request(
    method: str,
    url: str,
    headers: Headers | None = None,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
    client: httpx.AsyncClient | None = None,
) -> int:
    """Send a request, and return the status. Redirects are not followed, as by the gateway.

    Raises:
        ExternalHttpError: The server cannot be reached or is too slow.
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
        raise ExternalHttpError(f"it does not answer within {timeout_s:g} s") from None
    except HTTP_ERRORS as exc:
        raise ExternalHttpError(describe_http_failure(exc, url)) from None


async def check_keys(name: str, guard: Jwt, issuer: str, steps: CheckProgress) -> Finding:
    """Check that an issuer, if keys are discovered, has keys that a guard can use (RFC 7517)."""
    subject = f"guard {name}"
    external_http = ExternalHttp()
    url = guard.keys if isinstance(guard.keys, str) else None
    with steps.track(f"{subject} at {url or build_metadata_url(issuer)}"):
        try:
            url = url or await request_jwks_url(issuer, guard.jwks, external_http)
            keys = await request_keys(url, guard.jwks, external_http)
        except ExternalHttpError as exc:
            return failure(subject, str(exc))
        finally:
            await external_http.close()
    if not len(keys):
        return failure(subject, f"{url} lists no key yet; ask the issuer for one")
    algorithms = ", ".join(sorted(keys.algorithms))
    if guard.algorithms and not keys.algorithms.intersection(guard.algorithms):
        accepted = ", ".join(guard.algorithms)
        what = f"the keys of {url} are for {algorithms}, but the guard accepts {accepted}"
        return failure(subject, f"{what}; correct algorithms")
    return ok(subject, f"{len(keys)} key{'s' * (len(keys) > 1)} for {algorithms} at {url}")


async def check_application(name: str, guard: Http, steps: CheckProgress) -> Finding:
    subject, url = f"guard {name}", guard.url
    headers = {"x-forwarded-method": "GET", "x-forwarded-uri": "/", "accept": "application/json"}
    with steps.track(f"{subject} at {url}"):
        try:
            status = await send_request("GET", url, headers, timeout_s=guard.timeout)
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
            status = await send_request("GET", url, headers, client=client)
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
    telemetry = settings.telemetry
    for signal, url in (("metrics", telemetry.metrics.otlp), ("traces", telemetry.traces.otlp)):
        if url is not None:
            from gateway.telemetry.otlp import build_endpoint

            yield signal, build_endpoint(url, signal)


async def check_telemetry_back_end(
    signal: str, url: str, settings: Settings, steps: CheckProgress
) -> Finding:
    headers = {name: value.get_secret_value() for name, value in settings.telemetry.headers.items()}
    headers["content-type"] = "application/x-protobuf"
    return await check_push(f"telemetry.{signal}", url, headers, "telemetry.headers", steps)


async def check_influx(section: Influx, steps: CheckProgress) -> Finding:
    from gateway.telemetry.influx import build_auth_headers, build_write_url

    token = None if section.token is None else section.token.get_secret_value()
    url = build_write_url(section.url, section.org, section.bucket, section.db)
    return await check_push(
        "telemetry.metrics.influx", url, build_auth_headers(token), "the token", steps
    )


async def check_push(
    subject: str, url: str, headers: Headers, credentials: str, steps: CheckProgress
) -> Finding:
    """Check that a server accepts an empty POST request; findings name the `credentials`."""
    with steps.track(f"{subject} at {url}"):
        try:
            # The exporters use the proxies of the environment, so this client does, too.
            status = await send_request("POST", url, headers, client=httpx.AsyncClient())
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
    for name, catalog in settings.catalogs.items():
        for url in catalog.url:
            yield check_registry(name, catalog, url, steps)
    for name, guard in settings.guards.items():
        if isinstance(guard, Jwt) and (guard.keys is None or isinstance(guard.keys, str)):
            for issuer in guard.issuer if guard.keys is None else ("",):
                yield check_keys(name, guard, issuer, steps)
        elif isinstance(guard, Http):
            yield check_application(name, guard, steps)
    for signal, url in iter_telemetry_endpoints(settings):
        yield check_telemetry_back_end(signal, url, settings, steps)
    if settings.telemetry.metrics.influx is not None:
        yield check_influx(settings.telemetry.metrics.influx, steps)


EXPIRY_WARNING_PERIOD = timedelta(days=14)


def check_certificates(settings: Settings, now: datetime | None = None) -> Iterator[Finding]:
    now = now or datetime.now(UTC)
    listen = settings.listen.tls
    if listen is not None:
        yield check_key_pair("listen.tls.certificate", listen.certificate, listen.key, None, now)
        if listen.ca is not None:
            yield check_authorities("listen.tls.ca", listen.ca, now)
    for name, kafka in settings.clusters.items():
        if kafka.security.tls is not None:
            option = f"kafka.{name}" if name else "kafka"
            yield from _check_client_tls(f"{option}.security.tls", kafka.security.tls, now)


def _check_client_tls(option: str, tls: Tls, now: datetime) -> Iterator[Finding]:
    if tls.certificate is not None and tls.key is not None:
        password = None if tls.key_password is None else tls.key_password.get_secret_value()
        yield check_key_pair(f"{option}.certificate", tls.certificate, tls.key, password, now)
    if tls.ca is not None:
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
            return failure(
                subject,
                f"{_format_subject(each)} is valid from {_format_day(each.not_valid_before_utc)}",
            )
        if each.not_valid_after_utc <= now:
            return failure(
                subject,
                f"{_format_subject(each)} expired on {_format_expiry(each)}; renew it",
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
    return _format_day(certificate.not_valid_after_utc)


def _format_day(at: datetime) -> str:
    return at.strftime("%Y-%m-%d")
