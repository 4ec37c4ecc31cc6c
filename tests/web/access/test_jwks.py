from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from support.issuer import SHARED_SECRET, build_jwk, get_private_key, get_rsa_key
from support.waiting import wait_until

from gateway.config import Jwk, Jwks
from gateway.web.access.external_http import ExternalHttpError, ExternalResponse
from gateway.web.access.jwks import KeySet, KeySource, KeysUnavailable, RemoteKeySource


def encode_keys(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


ONE, TWO = encode_keys(build_jwk(get_rsa_key(), "k0")), encode_keys(build_jwk(get_rsa_key(1), "k1"))


class FakeExternalHttp:
    """Stands for what is elsewhere. reply: a body, a whole reply, or why there is none."""

    def __init__(self) -> None:
        self.reply: bytes | ExternalResponse | ExternalHttpError = ONE
        self.request_count = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def get(
        self, url: str, headers: Any = (), *, timeout_s: float, max_body_bytes: int
    ) -> ExternalResponse:
        self.request_count += 1
        self.timeout_s = timeout_s
        reply = self.reply
        await self.may_answer.wait()
        if isinstance(reply, ExternalHttpError):
            raise reply
        return reply if isinstance(reply, ExternalResponse) else ExternalResponse(200, reply)


class FakeClock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def site() -> FakeExternalHttp:
    return FakeExternalHttp()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def keys(site: FakeExternalHttp, clock: FakeClock) -> RemoteKeySource:
    times = {"refresh": "10m", "cooldown": "10s", "maxAge": "1h", "timeout": "3s"}
    settings = Jwks.model_validate(times)
    return RemoteKeySource("jwt0", "http://issuer/jwks", settings, site, clock)  # type: ignore[arg-type]


def list_key_ids(found: KeySet) -> set[str]:
    """Of the keys that these tests have."""
    return {
        kid
        for kid in ("k0", "k1", "e")
        if any(found.find(kid, algorithm) for algorithm in found.algorithms)
    }


async def wait_until_fetched() -> None:
    """What is fetched beside is there."""
    await wait_until(lambda: len(asyncio.all_tasks()) == 1, interval_s=0)
    await asyncio.sleep(0)  # what its end calls back


async def test_they_are_fetched_once_for_all_who_wait(keys, site):
    site.may_answer.clear()
    waiting = [asyncio.create_task(keys.get_current()) for _ in range(50)]
    await asyncio.sleep(0)
    site.may_answer.set()
    found = await asyncio.gather(*waiting)
    assert site.request_count == 1 and len(set(map(id, found))) == 1
    assert site.timeout_s == 3


async def test_who_goes_away_meanwhile_does_not_end_it_for_the_others(keys, site):
    site.may_answer.clear()
    gone, stays = (asyncio.create_task(keys.get_current()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    site.may_answer.set()
    assert list_key_ids(await stays) == {"k0"} and site.request_count == 1


async def test_old_ones_are_fetched_anew_beside_those_who_use_them(keys, site, clock):
    await keys.get_current()
    clock.now += 599
    await keys.get_current()
    assert site.request_count == 1
    clock.now += 2
    site.reply = TWO
    assert list_key_ids(await keys.get_current()) == {"k0"}
    await wait_until_fetched()
    assert list_key_ids(await keys.get_current()) == {"k1"} and site.request_count == 2


async def test_the_same_keys_stay_the_same_object(keys: RemoteKeySource, clock: FakeClock):
    first = await keys.get_current()
    clock.now += 601
    await keys.get_current()
    await wait_until_fetched()
    assert await keys.get_current() is first


async def test_an_unknown_key_has_them_fetched_but_not_again_and_again(keys, site, clock):
    first = await keys.get_current()
    clock.now += 11
    site.reply = TWO
    assert list_key_ids(await keys.get_newer(first, "k1", "RS256")) == {"k1"}
    assert list_key_ids(await keys.get_newer(first, "k1", "RS256")) == {"k1"}, "others already"
    for n in range(100):
        with pytest.raises(KeysUnavailable):
            await keys.get_newer(await keys.get_current(), f"invented {n}", "RS256")
    assert site.request_count == 2


async def test_a_key_is_unknown_only_if_the_issuer_was_asked_since(keys, site, clock):
    """A token of a new key was refused for good just after the keys had been fetched."""
    first = await keys.get_current()
    clock.now += 9
    site.reply = TWO
    with pytest.raises(KeysUnavailable, match="may have a new key"):
        await keys.get_newer(first, "k1", "RS256")
    clock.now += 2
    second = await keys.get_newer(first, "k1", "RS256")
    assert list_key_ids(second) == {"k1"} and site.request_count == 2
    with pytest.raises(KeysUnavailable):
        await keys.get_newer(second, "k2", "RS256")
    clock.now += 11
    for _ in range(2):
        assert await keys.get_newer(second, "k2", "RS256") is second, "the issuer has no such key"
    assert site.request_count == 3
    site.may_answer.clear()
    clock.now += 11
    early = asyncio.create_task(keys.get_newer(second, "k3", "RS256"))
    await asyncio.sleep(0)
    late = asyncio.create_task(keys.get_newer(second, "k4", "RS256"))
    await asyncio.sleep(0)
    site.may_answer.set()
    assert await early is second
    with pytest.raises(KeysUnavailable):
        await late


@pytest.mark.parametrize(
    "reply",
    [
        ExternalHttpError("it cannot be reached"),
        ExternalResponse(503, ONE),
        ExternalResponse(404, b""),
        ExternalResponse(301, b""),
        b"",
        b"{",
        b"<html>",
        b"[]",
        b'{"keys": {}}',
        b"[" * 9999,
        b"\xff\xfe",
        encode_keys("no key", 7, None, {}),
        encode_keys({"kty": "RSA", "n": "!", "e": "AQAB"}),
        encode_keys(build_jwk(SHARED_SECRET, "k0")),
        encode_keys({**build_jwk(get_rsa_key(), "k0"), "use": "enc"}),
        encode_keys({**build_jwk(get_rsa_key(), "k0"), "d": "AQAB"}),
    ],
)
async def test_while_the_issuer_gives_none_the_old_ones_serve(keys, site, clock, reply, caplog):
    """For 5 minutes, and up to `maxAge`; it is said once, and once when it is over."""
    caplog.set_level(logging.INFO)
    first = await keys.get_current()
    site.reply = reply
    clock.now += 601
    for _ in range(300):
        assert await keys.get_current() is first
        await wait_until_fetched()
        clock.now += 1
    assert 10 <= site.request_count <= 300, "it is tried again, more and more seldom"
    with pytest.raises(KeysUnavailable, match="whether it has a new key"):
        await keys.get_newer(first, "k1", "RS256")
    site.reply = TWO
    clock.now += 11
    assert await keys.get_current() is first
    await wait_until_fetched()
    assert list_key_ids(await keys.get_current()) == {"k1"}
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 2 and "no keys" in said[0] and "again" in said[1]


async def test_they_do_not_serve_for_ever(keys, site, clock):
    await keys.get_current()
    site.reply = ExternalHttpError("it cannot be reached")
    clock.now += 3601
    with pytest.raises(KeysUnavailable, match="cannot be fetched"):
        await keys.get_current()
    site.reply = ONE
    clock.now += 11
    assert list_key_ids(await keys.get_current()) == {"k0"}


async def test_before_there_are_any_nobody_is_judged_and_the_issuer_is_not_run_over(
    keys, site, clock
):
    site.reply = ExternalHttpError("it cannot be reached")
    for _ in range(100):
        with pytest.raises(KeysUnavailable):
            await keys.get_current()
    assert site.request_count == 1
    site.reply = ONE
    clock.now += 11
    assert list_key_ids(await keys.get_current()) == {"k0"} and site.request_count == 2


async def test_the_log_says_where_the_keys_were_and_why_there_are_none(keys, site, caplog):
    """Neither the URL nor the cause was in the log."""
    site.reply = ExternalHttpError("it cannot be reached: connection refused")
    with pytest.raises(KeysUnavailable):
        await keys.get_current()
    assert "from http://issuer/jwks: it cannot be reached: connection refused" in caplog.text
    assert "connection refused" in (keys.find_problem() or "")


async def test_a_problem_is_found_while_there_are_no_keys_and_they_are_tried_again(
    keys, site, clock
):
    """Nobody was told but clients, and without clients nobody noticed that it was over."""
    site.reply = ExternalResponse(404, b"")
    assert keys.find_problem() is None, "nobody knows yet"
    await wait_until_fetched()
    assert "http://issuer/jwks answers 404" in (keys.find_problem() or "")
    for _ in range(100):
        keys.find_problem()
    await wait_until_fetched()
    assert site.request_count == 1, "not more often than clients may cause it"
    site.reply = ONE
    clock.now += 11
    keys.find_problem()
    await wait_until_fetched()
    assert keys.find_problem() is None
    site.reply = ExternalResponse(404, b"")
    clock.now += 601
    await keys.get_current()
    await wait_until_fetched()
    assert keys.find_problem() is None, "the old keys serve"
    clock.now += 3000
    assert "404" in (keys.find_problem() or "")
    await wait_until_fetched()


async def test_an_empty_list_is_an_answer(keys, site, clock):
    """An issuer may take back all its keys."""
    await keys.get_current()
    site.reply = encode_keys()
    clock.now += 601
    await keys.get_current()
    await wait_until_fetched()
    assert list_key_ids(await keys.get_current()) == set()


def test_keys_of_other_kinds_are_passed_over():
    strange = ({"kty": "PQ", "x": "a"}, {"kty": "EC", "crv": "secp256k1", "x": "a", "y": "b"}, 7)
    good = build_jwk(get_rsa_key(), "k0")
    read = KeySet.parse(
        encode_keys(
            *strange,
            build_jwk(SHARED_SECRET, "shared"),
            good,
            build_jwk(get_private_key("EdDSA"), "e"),
        )
    )
    assert list_key_ids(read) == {"k0", "e"}


@pytest.mark.parametrize(
    ("kid", "algorithm", "found"),
    [
        ("k0", "RS256", 2), ("k0", "PS512", 2), ("e0", "ES256", 2), ("k0", "ES256", 1),
        (None, "RS256", 2), (None, "ES256", 2), ("k9", "RS256", 1), ("k9", "EdDSA", 0),
        ("k0", "HS256", 0), ("k0", "none", 0), (None, "", 0),
    ],
)  # fmt: skip
def test_a_key_is_looked_up_by_its_id_and_what_it_is_good_for(kid, algorithm, found):
    keys = KeySet(
        Jwk.model_validate(each)
        for each in (
            build_jwk(get_rsa_key(), "k0"),
            build_jwk(get_rsa_key(1)),
            build_jwk(get_private_key("ES256"), "e0"),
            build_jwk(get_private_key("ES256", 1)),
        )
    )
    assert len(keys.find(kid, algorithm)) == found


async def test_keys_of_the_file_are_what_they_are():
    keys = KeySource([Jwk.model_validate(build_jwk(get_rsa_key(), "k0"))])
    known = await keys.get_current()
    assert await keys.get_newer(known, "k9", "RS256") is known
