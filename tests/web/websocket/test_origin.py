from __future__ import annotations

import pytest

from gateway.config.sections.guards import X509
from gateway.config.sections.listen import AccessControl
from gateway.web.http.browsers import has_ambient_credentials, is_origin_allowed

SAME = AccessControl()
ANY = AccessControl.model_validate({"policy": "cross-origin"})
SHOP = AccessControl.model_validate(
    {"policy": "cross-origin", "allow": {"origins": ["https://shop.example"]}}
)
LOGIN = AccessControl.model_validate(
    {"policy": "cross-origin", "allow": {"origins": ["https://shop.example"], "credentials": True}}
)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://gateway.example", "gateway.example"),
        ("http://gateway.example:8080", "gateway.example:8080"),
        ("https://gateway.example", "gateway.example"),
        ("https://gateway.example", "gateway.example:443"),
        ("http://gateway.example", "gateway.example:80"),
        ("http://gateway.example", "Gateway.Example"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("http://[::1]", "[::1]:80"),
    ],
)
def test_pages_of_the_gateways_own_host_may(origin: str, host: str):
    assert is_origin_allowed(SAME, origin, host)
    assert is_origin_allowed(SHOP, origin, host, has_credentials=True)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "gateway.example"),
        ("https://shop.example.evil.example", "gateway.example"),
        ("http://gateway.example.evil", "gateway.example"),
        ("http://evil.gateway.example", "gateway.example"),
        ("http://gateway.example:81", "gateway.example"),
        ("http://gateway.example", "gateway.example:8080"),
        ("https://gateway.example:80", "gateway.example:443"),
        ("null", "gateway.example"),
        ("", ""),
        ("://", ""),
        ("file://", ""),
        ("gateway.example", "gateway.example"),
        ("http://[::1]", "[::1]:1"),
    ],
)
def test_pages_of_other_sites_may_not(origin: str, host: str):
    assert not is_origin_allowed(SAME, origin, host)
    assert not is_origin_allowed(SHOP, origin, host)


def test_programs_send_no_origin_and_may():
    assert is_origin_allowed(SAME, None, "gateway.example", has_credentials=True)


def test_other_sites_may_where_the_configuration_lists_them_or_all():
    assert is_origin_allowed(SHOP, "https://shop.example", "gateway.example")
    assert not is_origin_allowed(SHOP, "http://shop.example", "gateway.example")
    assert is_origin_allowed(ANY, "https://any.example", "gateway.example")
    assert is_origin_allowed(ANY, "null", "gateway.example")


def test_cookies_count_for_other_sites_only_with_credentials():
    assert is_origin_allowed(LOGIN, "https://shop.example", "gateway.example", has_credentials=True)
    assert not is_origin_allowed(
        SHOP, "https://shop.example", "gateway.example", has_credentials=True
    )
    assert not is_origin_allowed(
        ANY, "https://shop.example", "gateway.example", has_credentials=True
    )


def test_a_browser_sends_the_certificate_of_its_user_to_any_page():
    assert has_ambient_credentials({}, [X509(type="x509")])
    assert has_ambient_credentials({"authorization": "Basic YTpi"}, [])
    assert not has_ambient_credentials({"authorization": "Bearer x"}, [])
