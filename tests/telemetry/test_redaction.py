"""No secret of a URL or a text is ever logged, and what is none stays readable."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.logs import add_secret_names, redact_text, redact_url

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.Sfl-KxwRJSMeKKF2QT4"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/events/orders", "/events/orders"),
        ("/events/orders?from=-5m&filter=a", "/events/orders?from=-5m&filter=a"),
        ("/events?token=abc", "/events?token=***"),
        ("/events?Token=abc&from=live", "/events?Token=***&from=live"),
        ("/events?from=live&access_token=abc", "/events?from=live&access_token=***"),
        ("/events?access-token=abc;jwt=x", "/events?access-token=***;jwt=***"),
        ("/events?%74oken=abc", "/events?%74oken=***"),
        ("/events?token=", "/events?token="),
        ("/events?token", "/events?token"),
        ("https://ada:pw@h/x?api_key=1#f", "https://***@h/x?api_key=***#f"),
        ("/events?lastEventId=AAAA", "/events?lastEventId=AAAA"),
        ("/events?a=token=abc", "/events?a=token=abc"),
    ],
)
def test_values_of_parameters_that_hold_secrets_are_hidden(url: str, shown: str):
    assert redact_url(url) == shown


@given(
    name=st.sampled_from(["token", "access_token", "JWT", "password", "api-key"]),
    secret=st.text(min_size=8).map(lambda text: "s3cret" + text),
    before=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3),
)
def test_whatever_the_secret_and_whatever_stands_around_it(name, secret, before):
    url = "/events?" + "&".join(
        [*([urlencode(before)] if before else []), f"{name}={quote(secret)}"]
    )
    assert "s3cret" not in redact_url(url)
    assert "s3cret" not in redact_text(f"GET {url} 401")


def test_a_parameter_of_an_operator_is_hidden_once_it_is_named():
    assert redact_url("/events?own-pass=abc") == "/events?own-pass=abc"
    add_secret_names(["Own-Pass"])
    assert redact_url("/events?own-pass=abc") == "/events?own-pass=***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcdef123", "Authorization: Bearer ***"),
        ("bearer.abcdef123 as a subprotocol", "bearer.*** as a subprotocol"),
        (f"what came was {JWT}, it seems", "what came was ***, it seems"),
        ("Basic dXNlcjpwYXNz refused", "Basic *** refused"),
        ("connecting to http://u:p@host/x", "connecting to http://***@host/x"),
        ("GET /a?token=abc&b=c HTTP/1.1", "GET /a?token=***&b=c HTTP/1.1"),
        (
            "FETCH reconnect in 0.400s topic=orders partition=3 cause=timeout",
            "FETCH reconnect in 0.400s topic=orders partition=3 cause=timeout",
        ),
        ("it is as basic as that", "it is as basic as that"),
    ],
)
def test_a_line_shows_no_secret_and_all_else(text: str, shown: str):
    assert redact_text(text) == shown
