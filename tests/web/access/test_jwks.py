from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from support.issuer import SECRET, jwk, private_key, rsa_key
from support.until import until

from gateway.config import Jwk, Jwks
from gateway.web.access.elsewhere import Away, Reply
from gateway.web.access.jwks import Fetched, KeysAway, KeySet, Listed


def body(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


ONE, TWO = body(jwk(rsa_key(), "k0")), body(jwk(rsa_key(1), "k1"))


class Site:
    """Stands for what is elsewhere. reply: a body, a whole reply, or why there is none."""

    def __init__(self) -> None:
        self.reply: bytes | Reply | Away = ONE
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()

    async def get(self, url: str, headers: Any = (), *, within: float, most: int) -> Reply:
        self.asked += 1
        reply = self.reply
        await self.open.wait()
        if isinstance(reply, Away):
            raise reply
        return reply if isinstance(reply, Reply) else Reply(200, reply)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(site: Site, clock: Clock) -> Fetched:
    settings = Jwks.model_validate({"refresh": "10m", "cooldown": "10s", "maxAge": "1h"})
    return Fetched("jwt0", "http://issuer/jwks", settings, site, clock)  # type: ignore[arg-type]


def kids(found: KeySet) -> set[str | None]:
    return {key.kid for key in found._jwks}


async def settled(keys: Fetched) -> None:
    """What is fetched beside is there."""
    await until(lambda: keys._fetching is None, every=0)


async def test_they_are_fetched_once_for_all_who_wait(keys: Fetched, site: Site):
    site.open.clear()
    waiting = [asyncio.create_task(keys.current()) for _ in range(50)]
    await asyncio.sleep(0)
    site.open.set()
    found = await asyncio.gather(*waiting)
    assert site.asked == 1 and len(set(map(id, found))) == 1


async def test_who_goes_away_meanwhile_does_not_end_it_for_the_others(keys: Fetched, site: Site):
    site.open.clear()
    gone, stays = (asyncio.create_task(keys.current()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    site.open.set()
    assert kids(await stays) == {"k0"} and site.asked == 1


async def test_old_ones_are_fetched_anew_beside_those_who_use_them(
    keys: Fetched, site: Site, clock: Clock
):
    await keys.current()
    clock.now += 599
    await keys.current()
    assert site.asked == 1
    clock.now += 2
    site.reply = TWO
    assert kids(await keys.current()) == {"k0"}
    await settled(keys)
    assert kids(await keys.current()) == {"k1"} and site.asked == 2


async def test_the_same_keys_stay_the_same_object(keys: Fetched, clock: Clock):
    first = await keys.current()
    clock.now += 601
    await keys.current()
    await settled(keys)
    assert await keys.current() is first


async def test_an_unknown_key_has_them_fetched_but_not_again_and_again(
    keys: Fetched, site: Site, clock: Clock
):
    first = await keys.current()
    clock.now += 9
    assert await keys.after(first) is first and site.asked == 1, "too soon"
    clock.now += 2
    site.reply = TWO
    assert kids(await keys.after(first)) == {"k1"} and site.asked == 2
    assert kids(await keys.after(first)) == {"k1"} and site.asked == 2, "they are others already"
    for _ in range(100):
        assert kids(await keys.after(await keys.current())) == {"k1"}
    assert site.asked == 2


@pytest.mark.parametrize(
    "reply",
    [
        Away("it cannot be reached"), Reply(503, ONE), Reply(404, b""), Reply(301, b""), b"", b"{",
        b"<html>", b"[]", b'{"keys": {}}', b"[" * 9999, b"\xff\xfe", body("no key", 7, None, {}),
        body({"kty": "RSA", "n": "!", "e": "AQAB"}), body(jwk(SECRET, "k0")),
        body({**jwk(rsa_key(), "k0"), "use": "enc"}), body({**jwk(rsa_key(), "k0"), "d": "AQAB"}),
    ],
)  # fmt: skip
async def test_while_the_issuer_gives_none_the_old_ones_serve(
    keys: Fetched, site: Site, clock: Clock, reply: Any, caplog: pytest.LogCaptureFixture
):
    """For 5 minutes, and up to `maxAge`; it is said once, and once when it is over."""
    caplog.set_level(logging.INFO)
    first = await keys.current()
    site.reply = reply
    clock.now += 601
    for _ in range(300):
        assert await keys.current() is first
        await settled(keys)
        clock.now += 1
    assert 10 <= site.asked <= 300, "it is tried again, more and more seldom"
    with pytest.raises(KeysAway, match="whether it has a new key"):
        await keys.after(first)
    site.reply = TWO
    clock.now += 11
    assert await keys.current() is first
    await settled(keys)
    assert kids(await keys.current()) == {"k1"}
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 2 and "no keys" in said[0] and "again" in said[1]


async def test_they_do_not_serve_for_ever(keys: Fetched, site: Site, clock: Clock):
    await keys.current()
    site.reply = Away("it cannot be reached")
    clock.now += 3601
    with pytest.raises(KeysAway, match="cannot be fetched"):
        await keys.current()
    site.reply = ONE
    clock.now += 11
    assert kids(await keys.current()) == {"k0"}


async def test_before_there_are_any_nobody_is_judged_and_the_issuer_is_not_run_over(
    keys: Fetched, site: Site, clock: Clock
):
    site.reply = Away("it cannot be reached")
    for _ in range(100):
        with pytest.raises(KeysAway):
            await keys.current()
    assert site.asked == 1
    site.reply = ONE
    clock.now += 11
    assert kids(await keys.current()) == {"k0"} and site.asked == 2


async def test_an_empty_list_is_an_answer(keys: Fetched, site: Site, clock: Clock):
    """An issuer may take back all its keys."""
    await keys.current()
    site.reply = body()
    clock.now += 601
    await keys.current()
    await settled(keys)
    assert kids(await keys.current()) == set()


def test_keys_of_other_kinds_are_passed_over():
    strange = ({"kty": "PQ", "x": "a"}, {"kty": "EC", "crv": "secp256k1", "x": "a", "y": "b"}, 7)
    good = jwk(rsa_key(), "k0")
    read = KeySet.read(body(*strange, jwk(SECRET, "shared"), good, jwk(private_key("EdDSA"), "e")))
    assert kids(read) == {"k0", "e"}


@pytest.mark.parametrize(
    ("kid", "algorithm", "found"),
    [
        ("k0", "RS256", 2), ("k0", "PS512", 2), ("e0", "ES256", 2), ("k0", "ES256", 1),
        (None, "RS256", 2), (None, "ES256", 2), ("k9", "RS256", 1), ("k9", "EdDSA", 0),
        ("k0", "HS256", 0), ("k0", "none", 0), (None, "", 0),
    ],
)  # fmt: skip
def test_a_key_is_looked_up_by_its_id_and_what_it_is_good_for(
    kid: str | None, algorithm: str, found: int
):
    keys = KeySet(
        Jwk.model_validate(each)
        for each in (
            jwk(rsa_key(), "k0"), jwk(rsa_key(1)), jwk(private_key("ES256"), "e0"),
            jwk(private_key("ES256", 1)),
        )
    )  # fmt: skip
    assert len(keys.find(kid, algorithm)) == found


async def test_keys_of_the_file_are_what_they_are():
    keys = Listed([Jwk.model_validate(jwk(rsa_key(), "k0"))])
    known = await keys.current()
    assert await keys.after(known) is known
