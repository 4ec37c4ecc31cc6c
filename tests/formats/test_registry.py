"""The registry's client: what it asks, keeps, and makes of errors."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from support.app_server import running_app
from support.certificates import CertificateAuthority
from support.registry import FakeRegistry as Fake

from gateway.config import SchemaRegistry
from gateway.errors import FormatError, RegistryUnavailable, SchemaNotFound
from gateway.formats.registry import MAX_SCHEMA_BYTES, CachedRegistryClient
from gateway.formats.serialization import SchemaReference, SerializationFormat

TEXT = '"string"'


@pytest.fixture
async def fake() -> Fake:
    return Fake()


@pytest.fixture
async def url(fake: Fake) -> AsyncIterator[str]:
    async with running_app(fake.app) as url:
        yield url


def registry(*urls: str, now: Any = None, **options: Any) -> CachedRegistryClient:
    catalog = SchemaRegistry.model_validate(
        {"type": "schema-registry", "url": list(urls), **options}
    )
    return CachedRegistryClient(catalog) if now is None else CachedRegistryClient(catalog, now)


async def test_an_id_is_asked_for_once_for_all_who_want_it(fake: Fake, url: str):
    id = fake.register_schema("orders-value", TEXT)
    asked = registry(url)
    found = await asyncio.gather(*(asked.get_by_id(id) for _ in range(20)))
    assert {each.text for each in found} == {TEXT}
    assert await asked.get_by_id(id) == asked.get_cached(id) == found[0]
    assert found[0].format is SerializationFormat.AVRO
    assert fake.requests == {f"GET /schemas/ids/{id}": 1}
    await asked.close()


async def test_one_who_no_longer_waits_does_not_end_the_asking_of_others(fake: Fake, url: str):
    id, go = fake.register_schema("orders-value", TEXT), asyncio.Event()
    fake.wait_before_response = go.wait
    asked = registry(url)
    first, second = (asyncio.create_task(asked.get_by_id(id)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert (await second).text == TEXT
    await asked.close()


async def test_the_latest_is_asked_for_again_after_its_age(fake: Fake, url: str):
    now = 0.0
    asked = registry(url, now=lambda: now, maxAge="10s")
    first = fake.register_schema("orders-value", TEXT)
    assert (await asked.get_by_version("orders-value", None)).id == first
    second = fake.register_schema("orders-value", '"int"')
    now = 9.9
    assert (await asked.get_by_version("orders-value", None)).id == first
    now = 10.1
    assert asked.get_cached(("orders-value", None)) is None
    assert (await asked.get_by_version("orders-value", None)).id == second
    assert (await asked.get_by_version("orders-value", 1)).id == first
    await asked.close()


async def test_the_latest_is_believed_for_longer_while_the_registry_is_away(fake: Fake, url: str):
    now = 0.0
    asked = registry(url, now=lambda: now, maxAge="10s")
    id = fake.register_schema("orders-value", TEXT)
    await asked.get_by_version("orders-value", None)
    now, fake.error_status = 11.0, 503
    assert (await asked.get_by_version("orders-value", None)).id == id
    await asked.close()


async def test_what_is_not_there_is_asked_for_again_only_after_a_moment(fake: Fake, url: str):
    now = 0.0
    asked = registry(url, now=lambda: now)
    for _ in range(3):
        with pytest.raises(FormatError, match="no schema with the id 7"):
            await asked.get_by_id(7)
    assert fake.requests["GET /schemas/ids/7"] == 1
    with pytest.raises(FormatError):
        asked.get_cached(7)
    now = 6.0
    assert asked.get_cached(7) is None
    for n in range(6):
        fake.register_schema(f"s{n}", f'"s{n}"')
    assert fake.register_schema("orders-value", TEXT) == 7
    assert (await asked.get_by_id(7)).text == TEXT
    await asked.close()


async def test_an_unknown_subject_is_told_with_the_one_that_is_most_like_it(fake: Fake, url: str):
    fake.register_schema("orders-value", TEXT)
    asked = registry(url)
    with pytest.raises(FormatError, match=r"'order-value'; did you mean 'orders-value'\?"):
        await asked.get_by_version("order-value", None)
    with pytest.raises(FormatError, match="'orders-value' has no version 3"):
        await asked.get_by_version("orders-value", 3)
    await asked.close()


async def test_a_text_is_registered_once(fake: Fake, url: str):
    asked = registry(url)
    found = [
        await asked.get_or_register("orders-value", SerializationFormat.AVRO, TEXT, ())
        for _ in range(3)
    ]
    assert [each.id for each in found] == fake.subjects["orders-value"] * 3
    assert fake.requests == {"POST /subjects/orders-value/versions": 1}
    await asked.close()


async def test_a_text_is_only_looked_up_where_none_is_registered(fake: Fake, url: str):
    asked = registry(url, autoRegister=False)
    with pytest.raises(FormatError, match="no subject 'orders-value'"):
        await asked.get_or_register("orders-value", SerializationFormat.AVRO, TEXT, ())
    id = fake.register_schema("orders-value", TEXT)
    with pytest.raises(FormatError, match="has no such schema"):
        await asked.get_or_register("orders-value", SerializationFormat.AVRO, '"int"', ())
    await asked.close()
    fresh = registry(url, autoRegister=False)
    assert (
        await fresh.get_or_register("orders-value", SerializationFormat.AVRO, TEXT, ())
    ).id == id
    await fresh.close()


async def test_a_schema_that_the_registry_does_not_take_is_the_callers_fault(fake: Fake, url: str):
    asked = registry(url)
    with pytest.raises(FormatError, match="'orders-value' is refused: Invalid schema"):
        await asked.get_or_register("orders-value", SerializationFormat.AVRO, "{", ())
    fake.is_compatible = False
    with pytest.raises(FormatError, match="is incompatible with earlier ones"):
        await asked.get_or_register("orders-value", SerializationFormat.AVRO, TEXT, ())
    await asked.close()


async def test_references_come_the_innermost_first(fake: Fake, url: str):
    def record(name: str, field: str) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": "f", "type": field}]}

    fake.register_schema("c", record("C", "int"))
    fake.register_schema(
        "b", record("B", "C"), references=[{"name": "C", "subject": "c", "version": 1}]
    )
    id = fake.register_schema(
        "a-value", record("A", "B"), references=[{"name": "B", "subject": "b", "version": 1}]
    )
    asked = registry(url)
    assert list((await asked.get_by_id(id)).references) == ["C", "B"]
    written = await asked.get_or_register(
        "a-value",
        SerializationFormat.AVRO,
        '{"type": "array", "items": "B"}',
        (SchemaReference("B", "b", 1),),
    )
    assert list(written.references) == ["C", "B"]
    await asked.close()


async def test_references_are_read_after_they_were_deleted(fake: Fake, url: str):
    fake.register_schema("b", TEXT)
    references = [{"name": "B", "subject": "b", "version": 1}]
    id = fake.register_schema("a-value", '"B"', references=references)
    fake.deleted_subjects.add("b")
    asked = registry(url)
    assert (await asked.get_by_id(id)).references == {"B": TEXT}
    with pytest.raises(FormatError, match="no subject 'b'"):
        await asked.get_by_version("b", 1)
    await asked.close()


async def test_a_schema_whose_references_are_missing_is_named(fake: Fake, url: str):
    references = [{"name": "B", "subject": "b", "version": 1}]
    id = fake.register_schema("a-value", '"B"', references=references)
    asked = registry(url)
    with pytest.raises(FormatError, match=f"references of schema {id} .*: .* no subject 'b'"):
        await asked.get_by_id(id)
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
    id = fake.register_schema("orders-value", TEXT)
    async with running_app(fake.app) as url:
        good, nobody = registry(url, **options), registry(url)
        assert (await good.get_by_id(id)).text == TEXT
        with pytest.raises(RegistryUnavailable, match=r"refuses the gateway \(401\)") as told:
            await nobody.get_by_id(id)
        assert "s3" not in str(told.value)
        await good.close()
        await nobody.close()


async def test_the_next_url_is_asked_when_one_does_not_answer(fake: Fake, url: str):
    id, away = fake.register_schema("orders-value", TEXT), "http://127.0.0.1:9"
    asked = registry(away, url)
    assert (await asked.get_by_id(id)).text == TEXT
    broken = Fake(error_status=503)
    async with running_app(broken.app) as other:
        both = registry(other, url)
        assert (await both.get_by_id(id)).text == TEXT
        await both.get_by_version("orders-value", 1)
        assert broken.requests.total() == 1, "the one that answered is asked first"
        await both.close()
    await asked.close()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_registry_that_cannot_answer_is_away_and_comes_back(fake, url, status):
    id = fake.register_schema("orders-value", TEXT)
    fake.error_status = status
    asked = registry(url)
    with pytest.raises(RegistryUnavailable, match=f"answers {status}") as told:
        await asked.get_by_id(id)
    assert told.value.retry_after >= 1
    fake.error_status = None
    assert (await asked.get_by_id(id)).text == TEXT
    await asked.close()


async def test_a_silent_registry_is_away_after_its_timeout(fake: Fake, url: str):
    fake.wait_before_response = asyncio.Event().wait
    asked = registry(url, timeout="200ms")
    with pytest.raises(RegistryUnavailable, match=r"no answer within 0\.2 s"):
        await asked.get_by_id(1)
    await asked.close()


async def test_what_is_no_registry_is_told_as_that(fake: Fake, url: str):
    asked = registry(f"{url}/elsewhere")
    with pytest.raises(RegistryUnavailable, match="404 as no registry does; correct url"):
        await asked.get_by_id(1)
    await asked.close()


@pytest.mark.parametrize(
    "status, answer",
    [
        (404, {"error_code": 404, "message": "HTTP 404 Not Found"}),  # a wrong base path
        (404, {"status": 404, "error": "Not Found"}),  # another server
        (404, {}),
        (200, {}),
        (200, {"status": "UP"}),
        (200, []),
        (200, {"schema": 5}),
        (200, {"schema": TEXT, "schemaType": 5}),
        (200, {"schema": TEXT, "references": 5}),
        (200, {"schema": TEXT, "references": [{"name": "a"}]}),
        (302, {"login": "/"}),
        (400, {"error_code": 400}),
        (408, {}),
        (410, {"error_code": 40403}),
        (421, {}),
        (422, {"detail": "no registry"}),
    ],
)
async def test_only_a_registrys_own_words_say_that_there_is_no_schema(
    fake: Fake, url: str, status: int, answer: object
):
    """A proxy, or a wrong path, emptied topics into the dead letters. Another URL is asked."""
    id = fake.register_schema("orders-value", TEXT)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse(answer, status)(scope, receive, send)

    async with running_app(app) as wrong_url:
        asked = registry(wrong_url)
        for lookup in (asked.get_by_id(id), asked.get_by_version("orders-value", None)):
            with pytest.raises(RegistryUnavailable, match="correct url"):
                await lookup
        await asked.close()
        both = registry(wrong_url, url)
        assert (await both.get_by_id(id)).text == TEXT
        await both.close()


@pytest.mark.parametrize("id", [1 << 31, "00010203-0405-0607-0809-0a0b0c0d0e0f"])
async def test_an_id_that_a_registry_cannot_read_is_missing(fake: Fake, id: int | str):
    """One record with it held up its topic for good, as if the registry were away."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        unknown_path = JSONResponse({"error_code": 404, "message": "HTTP 404 Not Found"}, 404)
        answer = fake.app if scope["path"] == "/subjects" else unknown_path
        await answer(scope, receive, send)

    async with running_app(app) as url:
        asked = registry(url)
        with pytest.raises(SchemaNotFound):
            await asked.get_by_id(id)
        await asked.close()


async def test_a_schema_that_the_gateway_may_not_read_is_missing(fake: Fake):
    """One record with its id held up its topic for good, as if the login were wrong."""
    id = fake.register_schema("payroll-value", TEXT)
    reference = {"name": "a", "subject": "payroll-value", "version": 1}
    answers = {
        "/schemas/types": JSONResponse(["AVRO"]),
        f"/schemas/ids/{id + 2}": JSONResponse({"message": "no way"}, 403),  # of a proxy
        f"/schemas/ids/{id + 3}": JSONResponse({"schema": TEXT, "references": [reference]}),
    }
    forbidden = JSONResponse({"error_code": 40301, "message": "denied Read on payroll-value"}, 403)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answers.get(scope["path"], forbidden)(scope, receive, send)

    async with running_app(app) as url:
        asked = registry(url)
        with pytest.raises(SchemaNotFound, match="denied Read on payroll-value"):
            await asked.get_by_id(id)
        with pytest.raises(FormatError, match="denied Read on payroll-value"):
            await asked.get_by_id(id + 3)
        for lookup in (asked.get_by_version("payroll-value", None), asked.get_by_id(id + 2)):
            with pytest.raises(RegistryUnavailable, match="username or token"):
                await lookup
        answers.clear()
        with pytest.raises(RegistryUnavailable, match="username or token"):
            await asked.get_by_id(id + 1)
        await asked.close()


async def test_schemas_are_kept_up_to_a_number_of_bytes(fake: Fake, url: str):
    """A registry with a thousand schemas of a megabyte filled the memory with them."""
    texts = [f'"{letter * 1000}"' for letter in "abc"]
    ids = [fake.register_schema("orders-value", text) for text in texts]
    catalog = SchemaRegistry.model_validate({"type": "schema-registry", "url": url})
    asked = CachedRegistryClient(catalog, max_bytes=2500)
    for id in ids:
        await asked.get_by_id(id)
    assert [asked.get_cached(id) is None for id in ids] == [True, False, False]
    assert (await asked.get_by_id(ids[0])).text == texts[0]
    await asked.close()


async def test_a_schema_that_is_too_large_with_its_references_is_refused(fake: Fake, url: str):
    half = f'"{"a" * (MAX_SCHEMA_BYTES // 2)}"'
    for subject in ("b", "c"):
        fake.register_schema(subject, half)
    references = [{"name": name, "subject": name, "version": 1} for name in ("b", "c")]
    id = fake.register_schema("a-value", '"b"', references=references)
    asked = registry(url, timeout="60s")
    with pytest.raises(FormatError, match="more than 2 MiB"):
        await asked.get_by_id(id)
    await asked.close()


@pytest.mark.parametrize("id", [-1, 1 << 31])
async def test_an_id_that_no_frame_can_hold_is_no_answer_of_a_registry(id: int):
    """Values were to be framed with it, which was a 500."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({"id": id, "schema": TEXT})(scope, receive, send)

    async with running_app(answer) as url:
        asked = registry(url)
        with pytest.raises(RegistryUnavailable, match="none of a registry"):
            await asked.get_by_version("orders-value", None)
        with pytest.raises(RegistryUnavailable, match="none of a registry"):
            await asked.get_or_register("orders-value", SerializationFormat.AVRO, TEXT, ())
        await asked.close()


async def test_an_error_that_is_cached_keeps_nothing_of_those_who_caught_it(fake: Fake, url: str):
    """It was raised again with the traceback of the one before, whose frames had whole batches."""
    asked = registry(url)
    with pytest.raises(FormatError):
        await asked.get_by_id(7)
    errors = []
    for _ in range(2):
        with pytest.raises(SchemaNotFound) as told:
            asked.get_cached(7)
        errors.append(told.value)
    assert errors[0] is not errors[1]
    await asked.close()


@pytest.mark.parametrize("code", [40404, 40406])
async def test_that_a_schema_was_deleted_is_no_outage(code: int):
    """Records with such a schema held up their partition for as long as they were in Kafka."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer = {"error_code": code, "message": "it was soft deleted"}
        await JSONResponse(answer, 404)(scope, receive, send)

    async with running_app(app) as url:
        asked = registry(url)
        with pytest.raises(SchemaNotFound, match="soft deleted"):
            await asked.get_by_id(7)
        with pytest.raises(FormatError, match="soft deleted"):
            await asked.get_by_version("orders-value", 1)
        await asked.close()


async def test_tls_trusts_its_authority_and_shows_its_certificate(fake: Fake, tmp_path: Path):
    authority = CertificateAuthority(tmp_path)
    server, client = authority.issue_certificate("server"), authority.issue_certificate("client")
    id = fake.register_schema("orders-value", TEXT)
    options = {
        "ssl_certfile": str(server),
        "ssl_keyfile": str(server),
        "ssl_ca_certs": str(authority.certificate_path),
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
    }
    async with running_app(fake.app, **options) as url:
        url = url.replace("http:", "https:")
        tls = {
            "ca": str(authority.certificate_path),
            "certificate": str(client),
            "key": str(client),
        }
        good = registry(url, tls=tls)
        assert (await good.get_by_id(id)).text == TEXT
        for wrong in ({"tls": {"ca": str(authority.certificate_path)}}, {}):
            refused = registry(url, **wrong)
            with pytest.raises(RegistryUnavailable, match="cannot be asked"):
                await refused.get_by_id(id)
            await refused.close()
        await good.close()


async def test_each_reference_is_asked_for_once(fake: Fake, url: str):
    """Two references to the same two, and so on, were two to the power of their depth requests."""
    fake.register_schema("s0", TEXT)
    for n in range(1, 25):
        twice = [{"name": f"{side}{n}", "subject": f"s{n - 1}", "version": 1} for side in "ab"]
        fake.register_schema(f"s{n}", TEXT, references=twice)
    asking = registry(url)
    found = await asking.get_by_version("s24", None)
    assert len(found.references) == 48
    assert sum(fake.requests.values()) == 25
    await asking.close()


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_an_answer_without_end_is_read_to_its_bound(is_compressed):
    """A few KB of gzip were decompressed to whatever they held before anybody looked."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = gzip.compress(b"{}") if is_compressed else b" " * (17 << 20)
        headers = [(b"content-encoding", b"gzip")] if is_compressed else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    problem = "compressed .gzip." if is_compressed else f"more than {16 << 20} bytes"
    async with running_app(app) as url:
        asking = registry(url, timeout="60s")
        with pytest.raises(RegistryUnavailable, match=problem):
            await asking.get_by_id(1)
        await asking.close()
