from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest

from gateway.web.access.x509 import (
    FORWARDED_EXTENSION,
    MAX_HEADER_CHARS,
    TLS_EXTENSION,
    get_certificate,
    store_forwarded_certificate,
)
from gateway.web.http.asgi_middleware import ForwardedMiddleware

ADA, EVE = (
    f"-----BEGIN CERTIFICATE-----\n{name}+/=\n-----END CERTIFICATE-----\n"
    for name in ("ada", "eve")
)
IN_HEADER, OTHER = quote(ADA, safe=""), quote(EVE, safe="")


def build_scope(*values: str, client: str = "10.0.0.1") -> dict[str, Any]:
    headers = [(b"x-forwarded-client-cert", value.encode()) for value in values]
    return {"type": "http", "client": (client, 1), "headers": headers, "extensions": {"take": 1}}


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((), None),
        ((IN_HEADER,), ADA),
        ((f'Cert="{IN_HEADER}"',), ADA),
        ((f'By=spiffe://a;Hash=1;Cert="{IN_HEADER}";Subject="CN=ada,O=x";URI=',), ADA),
        ((f'Subject="/C=US;,Cert={OTHER}";Cert="{IN_HEADER}"',), ADA),
        ((f'Subject="a\\",Cert={OTHER},\\"";Cert="{IN_HEADER}"',), ADA),
        ((f'Cert="{OTHER}", Cert="{IN_HEADER}"',), ADA),
        ((f'Cert="{OTHER}"', f'Cert="{IN_HEADER}"'), ADA),
        ((f'Cert="{OTHER}", By=b;Hash=2',), None),
        (("Hash=1;Subject=ada",), None),
        (("",), None),
        (('"',), None),
        (("Cert=ada",), None),
        ((f'cert="{IN_HEADER}" ; Hash=1',), ADA),
        ((f"Cert={IN_HEADER};Hash=1",), ADA),
        ((f'Cert="{OTHER},By=b;Cert="{IN_HEADER}"',), None),
        ((f'Cert="{OTHER}";X=",By=b;Cert="{IN_HEADER}"',), None),
        ((f'",By=b;Cert={IN_HEADER}',), None),
        ((f'Cert="{IN_HEADER}" and more',), None),
        ((f'Cert="{IN_HEADER}"' + " " * MAX_HEADER_CHARS,), None),
    ],
)
def test_what_a_proxy_says_is_the_certificate_that_it_saw_itself(values, found):
    told = build_scope(*values)
    store_forwarded_certificate(told)
    assert told["extensions"].get(FORWARDED_EXTENSION) == (values[-1] if values else None)
    assert get_certificate(told, trust_forwarded=True) == found
    assert get_certificate(told, trust_forwarded=False) is None


@pytest.mark.parametrize(
    ("proxies", "client", "believed"),
    [
        (("10.0.0.0/8",), "10.0.0.1", True),
        (("10.0.0.0/8",), "192.0.2.1", False),
        (True, "10.0.0.1", False),
    ],
)
async def test_a_certificate_is_believed_of_proxies_that_are_named(proxies, client, believed):
    """Where everybody is, anybody could send the certificate of another, which is no secret."""
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope)

    told = build_scope(f'Cert="{IN_HEADER}"', client=client)
    told["headers"].append((b"x-forwarded-for", b"192.0.2.9"))
    await ForwardedMiddleware(app, proxies)(told, None, None)  # type: ignore[arg-type]
    assert (FORWARDED_EXTENSION in seen["extensions"]) == believed
    assert re.fullmatch(r"[0-9.]+", seen["client"][0])


def test_what_tls_has_checked_is_the_certificate():
    shown = {"client_cert_chain": [ADA, EVE], "client_cert_error": None}
    told: dict[str, Any] = {"extensions": {TLS_EXTENSION: shown}}
    assert get_certificate(told, trust_forwarded=False) == ADA
    assert (
        get_certificate(
            {"extensions": {TLS_EXTENSION: {**shown, "client_cert_error": "expired"}}},
            trust_forwarded=True,
        )
        is None
    )
    told["extensions"][FORWARDED_EXTENSION] = '"'  # of a client that opened a quote
    assert get_certificate(told, trust_forwarded=True) is None
    for nothing in (
        {},
        {"extensions": None},
        {"extensions": {TLS_EXTENSION: {"client_cert_chain": []}}},
    ):
        assert get_certificate(nothing, trust_forwarded=True) is None
