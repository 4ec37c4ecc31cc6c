"""The registry's client: what it asks, keeps, and makes of errors."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority
from support.registry import Registry as Fake
from support.served import served

from gateway.config import SchemaRegistry
from gateway.errors import FormatError, RegistryUnavailable
from gateway.formats.named import Format, Reference
from gateway.formats.registry import Registry

TEXT = '"string"'


@pytest.fixture
async def fake() -> Fake:
    return Fake()


@pytest.fixture
async def url(fake: Fake) -> AsyncIterator[str]:
    async with served(fake.app) as url:
        yield url


def registry(*urls: str, now: Any = None, **options: Any) -> Registry:
    catalog = SchemaRegistry.model_validate(
        {"type": "schema-registry", "url": list(urls), **options}
    )
    return Registry(catalog) if now is None else Registry(catalog, now)


async def test_an_id_is_asked_for_once_for_all_who_want_it(fake: Fake, url: str):
    id = fake.register("orders-value", TEXT)
    asked = registry(url)
    found = await asyncio.gather(*(asked.by_id(id) for _ in range(20)))
    assert {each.text for each in found} == {TEXT}
    assert await asked.by_id(id) == asked.known(id) == found[0]
    assert found[0].format is Format.AVRO
    assert fake.requests == {f"GET /schemas/ids/{id}": 1}
    await asked.close()


async def test_one_who_no_longer_waits_does_not_end_the_asking_of_others(fake: Fake, url: str):
    id, go = fake.register("orders-value", TEXT), asyncio.Event()
    fake.wait = go.wait
    asked = registry(url)
    first, second = (asyncio.create_task(asked.by_id(id)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert (await second).text == TEXT
    await asked.close()


async def test_the_latest_is_asked_for_again_after_its_age(fake: Fake, url: str):
    now = 0.0
    asked = registry(url, now=lambda: now, maxAge="10s")
    first = fake.register("orders-value", TEXT)
    assert (await asked.by_version("orders-value", None)).id == first
    second = fake.register("orders-value", '"int"')
    now = 9.9
    assert (await asked.by_version("orders-value", None)).id == first
    now = 10.1
    assert asked.known(("orders-value", None)) is None
    assert (await asked.by_version("orders-value", None)).id == second
    assert (await asked.by_version("orders-value", 1)).id == first
    await asked.close()


async def test_the_latest_is_believed_for_longer_while_the_registry_is_away(fake: Fake, url: str):
    now = 0.0
    asked = registry(url, now=lambda: now, maxAge="10s")
    id = fake.register("orders-value", TEXT)
    await asked.by_version("orders-value", None)
    now, fake.status = 11.0, 503
    assert (await asked.by_version("orders-value", None)).id == id
    await asked.close()


async def test_what_is_not_there_is_asked_for_again_only_after_a_moment(fake: Fake, url: str):
    now = 0.0
    asked = registry(url, now=lambda: now)
    for _ in range(3):
        with pytest.raises(FormatError, match="no schema with the id 7"):
            await asked.by_id(7)
    assert fake.requests["GET /schemas/ids/7"] == 1
    with pytest.raises(FormatError):
        asked.known(7)
    now = 6.0
    assert asked.known(7) is None
    for n in range(6):
        fake.register(f"s{n}", f'"s{n}"')
    assert fake.register("orders-value", TEXT) == 7
    assert (await asked.by_id(7)).text == TEXT
    await asked.close()


async def test_an_unknown_subject_is_told_with_the_one_that_is_most_like_it(fake: Fake, url: str):
    fake.register("orders-value", TEXT)
    asked = registry(url)
    with pytest.raises(FormatError, match=r"'order-value'; did you mean 'orders-value'\?"):
        await asked.by_version("order-value", None)
    with pytest.raises(FormatError, match="'orders-value' has no version 3"):
        await asked.by_version("orders-value", 3)
    await asked.close()


async def test_a_text_is_registered_once(fake: Fake, url: str):
    asked = registry(url)
    found = [await asked.written("orders-value", Format.AVRO, TEXT, ()) for _ in range(3)]
    assert [each.id for each in found] == fake.subjects["orders-value"] * 3
    assert fake.requests == {"POST /subjects/orders-value/versions": 1}
    await asked.close()


async def test_a_text_is_only_looked_up_where_none_is_registered(fake: Fake, url: str):
    asked = registry(url, autoRegister=False)
    with pytest.raises(FormatError, match="no subject 'orders-value'"):
        await asked.written("orders-value", Format.AVRO, TEXT, ())
    id = fake.register("orders-value", TEXT)
    with pytest.raises(FormatError, match="has no such schema"):
        await asked.written("orders-value", Format.AVRO, '"int"', ())
    await asked.close()
    fresh = registry(url, autoRegister=False)
    assert (await fresh.written("orders-value", Format.AVRO, TEXT, ())).id == id
    await fresh.close()


async def test_a_schema_that_the_registry_does_not_take_is_the_callers_fault(fake: Fake, url: str):
    asked = registry(url)
    with pytest.raises(FormatError, match="'orders-value' is refused: Invalid schema"):
        await asked.written("orders-value", Format.AVRO, "{", ())
    fake.compatible = False
    with pytest.raises(FormatError, match="is incompatible with earlier ones"):
        await asked.written("orders-value", Format.AVRO, TEXT, ())
    await asked.close()


async def test_references_come_the_innermost_first(fake: Fake, url: str):
    def record(name: str, field: str) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": "f", "type": field}]}

    fake.register("c", record("C", "int"))
    fake.register("b", record("B", "C"), references=[{"name": "C", "subject": "c", "version": 1}])
    id = fake.register(
        "a-value", record("A", "B"), references=[{"name": "B", "subject": "b", "version": 1}]
    )
    asked = registry(url)
    assert list((await asked.by_id(id)).used) == ["C", "B"]
    written = await asked.written(
        "a-value", Format.AVRO, '{"type": "array", "items": "B"}', (Reference("B", "b", 1),)
    )
    assert list(written.used) == ["C", "B"]
    await asked.close()


@pytest.mark.parametrize(
    ("fake_options", "options"),
    [
        ({"username": "ada", "password": "s3"}, {"username": "ada", "password": "s3"}),
        ({"token": "t0k"}, {"token": "t0k"}),
    ],
)
async def test_it_says_who_it_is(fake_options: dict[str, str], options: dict[str, str]):
    fake = Fake(**fake_options)  # type: ignore[arg-type]
    id = fake.register("orders-value", TEXT)
    async with served(fake.app) as url:
        good, nobody = registry(url, **options), registry(url)
        assert (await good.by_id(id)).text == TEXT
        with pytest.raises(RegistryUnavailable, match=r"refuses the gateway \(401\)") as told:
            await nobody.by_id(id)
        assert "s3" not in str(told.value)
        await good.close()
        await nobody.close()


async def test_the_next_url_is_asked_when_one_does_not_answer(fake: Fake, url: str):
    id, away = fake.register("orders-value", TEXT), "http://127.0.0.1:9"
    asked = registry(away, url)
    assert (await asked.by_id(id)).text == TEXT
    broken = Fake(status=503)
    async with served(broken.app) as other:
        both = registry(other, url)
        assert (await both.by_id(id)).text == TEXT
        await both.by_version("orders-value", 1)
        assert broken.requests.total() == 1, "the one that answered is asked first"
        await both.close()
    await asked.close()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_registry_that_cannot_answer_is_away_and_comes_back(
    fake: Fake, url: str, status: int
):
    id = fake.register("orders-value", TEXT)
    fake.status = status
    asked = registry(url)
    with pytest.raises(RegistryUnavailable, match=f"answers {status}") as told:
        await asked.by_id(id)
    assert told.value.retry_after >= 1
    fake.status = None
    assert (await asked.by_id(id)).text == TEXT
    await asked.close()


async def test_a_silent_registry_is_away_after_its_timeout(fake: Fake, url: str):
    fake.wait = asyncio.Event().wait
    asked = registry(url, timeout="200ms")
    with pytest.raises(RegistryUnavailable, match=r"no answer within 0\.2 s"):
        await asked.by_id(1)
    await asked.close()


async def test_what_is_no_registry_is_told_as_that(fake: Fake, url: str):
    asked = registry(f"{url}/elsewhere")
    with pytest.raises(RegistryUnavailable, match="404 as no registry does; correct url"):
        await asked.by_id(1)
    await asked.close()


async def test_tls_trusts_its_authority_and_shows_its_certificate(fake: Fake, tmp_path: Path):
    authority = Authority(tmp_path)
    server, client = authority.signed("server"), authority.signed("client")
    id = fake.register("orders-value", TEXT)
    options = {
        "ssl_certfile": str(server),
        "ssl_keyfile": str(server),
        "ssl_ca_certs": str(authority.path),
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
    }
    async with served(fake.app, **options) as url:
        url = url.replace("http:", "https:")
        tls = {"ca": str(authority.path), "certificate": str(client), "key": str(client)}
        good = registry(url, tls=tls)
        assert (await good.by_id(id)).text == TEXT
        for wrong in ({"tls": {"ca": str(authority.path)}}, {}):
            refused = registry(url, **wrong)
            with pytest.raises(RegistryUnavailable, match="cannot be asked"):
                await refused.by_id(id)
            await refused.close()
        await good.close()


async def test_each_reference_is_asked_for_once(fake: Fake, url: str):
    """Two references to the same two, and so on, were two to the power of their depth requests."""
    fake.register("s0", TEXT)
    for n in range(1, 25):
        twice = [{"name": f"{side}{n}", "subject": f"s{n - 1}", "version": 1} for side in "ab"]
        fake.register(f"s{n}", TEXT, references=twice)
    asking = registry(url)
    found = await asking.by_version("s24", None)
    assert len(found.used) == 48
    assert sum(fake.requests.values()) == 25
    await asking.close()


async def test_an_answer_without_end_is_read_to_its_bound():
    """A few KB of gzip were decompressed to whatever they held before anybody looked."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = gzip.compress(b" " * (64 << 20))
        headers = [(b"content-encoding", b"gzip"), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with served(app) as url:
        asking = registry(url)
        with pytest.raises(RegistryUnavailable, match=f"more than {16 << 20} bytes"):
            await asking.by_id(1)
        await asking.close()
