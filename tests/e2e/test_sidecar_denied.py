"""Topics and groups that Kafka does not let the sidecar write or read: told as that, by name, and
no others' harm."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from support.admin import KafkaAdmin
from support.instances import ConsumerInstance
from support.local_kafka import RiggedKafka
from support.oracle import StreamOracle
from support.secure_kafka import grant_access
from support.sidecars import running_sidecar, wait_until_ready

PRINCIPAL = "User:carol"
SASL = {"sasl": {"mechanism": "plain", "username": "carol", "password": "pw"}}


class Names(NamedTuple):
    """open: may be read and written. shut: may be described. hidden: not even that. keys: as that,
    where those of requests are kept. group: may be joined."""

    open: str
    shut: str
    hidden: str
    keys: str
    group: str


@pytest.fixture
def names(session_secured: RiggedKafka) -> Names:
    admin = KafkaAdmin(session_secured.bootstrap)
    made = Names(*(f"{field}-{uuid.uuid4().hex[:8]}" for field in Names._fields))
    for topic in made[:4]:
        admin.create_topic(topic)
    grant_access(admin, PRINCIPAL, made.open, AclOperation.READ, AclOperation.WRITE)
    grant_access(admin, PRINCIPAL, made.shut, AclOperation.DESCRIBE)
    grant_access(admin, PRINCIPAL, made.group, AclOperation.READ, resource_type=ResourceType.GROUP)
    return made


@pytest.fixture
async def http(session_secured: RiggedKafka, names: Names) -> AsyncIterator[httpx.AsyncClient]:
    servers = session_secured.get_addresses("SASL")
    parts: Any = {"producer": {"idempotency": {"topic": names.keys}}, "consumer": {}}
    async with running_sidecar(servers, security=SASL, **parts) as http:
        await wait_until_ready(http)
        yield http


async def post(
    http: httpx.AsyncClient, topic: str, key: str | None = None, **more: Any
) -> httpx.Response:
    body = {"valueFormat": "string", "records": [{"value": "v"}], **more}
    headers = {} if key is None else {"Idempotency-Key": key}
    return await http.post(f"/producers/{topic}", json=body, headers=headers)


def assert_denied(answer: httpx.Response, name: str) -> None:
    told = answer.json()
    assert (answer.status_code, told["code"]) == (403, "KAFKA_ACCESS_DENIED"), answer.text
    assert name in told["message"]


async def test_what_may_not_be_written_is_told_by_name_and_the_rest_is_written(http, names):
    for topic in (names.shut, names.hidden):
        assert_denied(await post(http, topic), topic)
        assert (await post(http, names.open)).status_code == 200
    (told,) = (await post(http, names.shut)).json()["offsets"]
    assert told["errorCode"] == 403
    lines = await http.post(
        f"/producers/{names.shut}?valueFormat=string",
        content=b'{"value":"a"}\n{"value":"b"}\n',
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert lines.text.count('"errorCode":403') == 2
    v2 = {"Content-Type": "application/vnd.kafka.binary.v2+json"}
    answer = await http.post(
        f"/topics/{names.shut}", json={"records": [{"value": "dg=="}]}, headers=v2
    )
    assert answer.status_code == 403, answer.text
    assert (await post(http, names.open)).status_code == 200


async def test_what_is_written_once_or_whole_needs_more_and_says_what(http, names, session_secured):
    """The topic where keys are kept, and ids of transactions."""
    keys, operations = names.keys, (AclOperation.READ, AclOperation.WRITE)
    assert_denied(await post(http, names.open, key="k"), keys)
    grant_access(KafkaAdmin(session_secured.bootstrap), PRINCIPAL, keys, *operations)
    async with asyncio.timeout(60):
        while True:  # until it looks again
            once = await post(http, names.open, key="k")
            if keys not in once.json()["message"]:
                break
            await asyncio.sleep(0.2)
    for answer in (once, await post(http, names.open, transactional=True)):
        assert_denied(answer, "transaction")
    assert (await post(http, names.open)).status_code == 200


async def test_what_may_not_be_read_is_told_by_name_and_the_rest_is_read(
    http, names, session_secured
):
    """Told now and then, as long as it lasts; a long poll is not ended by the same again."""
    async with StreamOracle(",".join(session_secured.bootstrap)) as oracle:
        await oracle.produce_records(names.shut, 3)
        instance = await ConsumerInstance.create_instance(http, names.group)
        answer = await instance.send_request("POST", "/subscriptions", {"topics": [names.hidden]})
        assert_denied(answer, names.hidden)
        await instance.subscribe(names.open, names.shut)
        values: list[str] = []
        denied = asked = 0
        async with asyncio.timeout(60):
            while len(values) < 5 or not denied:
                await oracle.produce_records(names.open, 1)
                answer = await instance.send_request("GET", "/records", timeout=2000)
                asked += 1
                if answer.status_code == 200:
                    values += [each["topic"] for each in answer.json()]
                else:
                    assert_denied(answer, names.shut)
                    denied += 1
        assert set(values) == {names.open}
        assert denied <= asked / 2
        admin = KafkaAdmin(session_secured.bootstrap)
        grant_access(admin, PRINCIPAL, names.shut, AclOperation.READ)
        async with asyncio.timeout(120):
            while names.shut not in values:
                answer = await instance.send_request("GET", "/records", timeout=2000)
                if answer.status_code == 200:
                    values += [each["topic"] for each in answer.json()]


async def test_partitions_by_hand_and_by_offset_are_denied_by_name(http, names):
    instance = await ConsumerInstance.create_instance(http, names.group)
    place = {"topic": names.hidden, "partition": 0}
    answer = await instance.send_request("POST", "/assignments", {"partitions": [place]})
    assert_denied(answer, names.hidden)
    await instance.assign(names.shut, 0)
    assert_denied(await instance.send_request("GET", "/records", timeout=30_000), names.shut)
    for topic in (names.shut, names.hidden):
        answer = await http.get(f"/topics/{topic}/partitions/0/records", params={"offset": 0})
        assert answer.status_code == 403 and topic in answer.text


async def test_a_group_that_may_not_be_joined_is_told_by_its_name(http, names):
    instance = await ConsumerInstance.create_instance(http, "not-ours")
    await instance.subscribe(names.open)
    assert_denied(await instance.send_request("GET", "/records", timeout=30_000), "not-ours")
    place = {"topic": names.open, "partition": 0}
    assert_denied(
        await instance.send_request("PUT", "/offsets", {"partitions": [place]}), "not-ours"
    )
    await instance.delete_instance()
