from __future__ import annotations

from typing import Any

import pytest

from gateway.web.http.browsers import PAGE_HEADERS, PRIVATE_HEADERS, add_security_headers


async def send_headers(
    headers: list[tuple[bytes, bytes]], *, varies: bool = False
) -> dict[str, str]:
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    before = list(headers)
    to = add_security_headers(send, varies_by_origin=varies)
    await to({"type": "http.response.start", "status": 200, "headers": headers})
    await to({"type": "http.response.body", "body": b"x"})
    assert headers == before and said[1]["body"] == b"x"
    names = [name for name, _ in said[0]["headers"]]
    assert len(set(names)) == len(names)
    return {name.decode(): value.decode() for name, value in said[0]["headers"]}


def lower_names(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize(
    "kind", ["application/json", "application/problem+json", "text/plain; version=0.0.4"]
)
async def test_data_is_no_page_whatever_it_looks_like(kind: str):
    told = await send_headers([(b"content-type", kind.encode())])
    assert told == {"content-type": kind, **lower_names(PAGE_HEADERS)}


@pytest.mark.parametrize("kind", ["text/javascript", "text/css", "text/html; charset=utf-8"])
async def test_what_is_a_page_or_of_one_says_itself_what_it_may_load(kind: str):
    told = await send_headers([(b"content-type", kind.encode())])
    assert told == {"content-type": kind, **lower_names(PRIVATE_HEADERS)}


async def test_what_an_answer_says_itself_stays():
    own = [(b"content-type", b"application/json"), (b"referrer-policy", b"origin"),
           (b"content-security-policy", b"sandbox")]  # fmt: skip
    told = await send_headers(own)
    assert (told["referrer-policy"], told["content-security-policy"]) == ("origin", "sandbox")
    assert told["x-content-type-options"] == "nosniff"


async def test_caches_are_told_where_answers_to_other_sites_are_others():
    assert (await send_headers([], varies=True))["vary"] == "Origin"
    assert (await send_headers([(b"vary", b"Accept, origin")], varies=True))[
        "vary"
    ] == "Accept, origin"
    assert "vary" not in await send_headers([])
