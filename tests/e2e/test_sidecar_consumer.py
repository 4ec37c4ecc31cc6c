"""Consumer instances over the socket, in the contract's words, on a real broker."""

from __future__ import annotations

import asyncio
import base64

import httpx
import pytest
from support.instances import ConsumerInstance, generate_group, get_offsets
from support.records import RecordToSend, produce_records
from support.sidecars import running_sidecar, wait_until_ready
from support.waiting import WAIT_TIMEOUT_S


@pytest.fixture
async def http(kafka):
    async with running_sidecar(kafka.bootstrap, consumer={}) as http:
        await wait_until_ready(http)
        yield http


def _place(topic: str, partition: int, offset: int) -> dict[str, object]:
    return {"topic": topic, "partition": partition, "offset": offset}


async def test_what_was_written_is_polled_committed_and_gone_on_from(http, topic, oracle):
    name = topic()
    written = await oracle.produce_records(name, 5)
    first = await ConsumerInstance.create_instance(http, autoCommitEnable="false")
    await first.subscribe(name)
    records = await first.poll_until(5, format="string")
    assert [each["value"].encode() for each in records] == [each.value for each in written]
    assert (await first.commit_offsets()).json()["offsets"][0]["offset"] == 5
    await first.delete_instance()
    await oracle.produce_records(name, 1)
    second = await ConsumerInstance.create_instance(http, first.group)
    await second.subscribe(name)
    assert get_offsets(await second.poll_records()) == [5]


async def test_the_first_poll_waits_for_the_group_and_a_later_one_for_what_is_written_meanwhile(
    http, topic, oracle
):
    name = topic(partitions=3)
    instance = await ConsumerInstance.create_instance(http)
    await oracle.produce_records(name, 1)
    await instance.subscribe(name)
    assert len(await instance.poll_records()) == 1
    waiting = asyncio.create_task(instance.poll_records())
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    assert not done, "it was answered with nothing, and there was time left"
    await oracle.produce_records(name, 1)
    assert len(await waiting) == 1
    assert await instance.poll_records(timeout_ms=0) == []


async def test_a_record_is_never_left_out_for_its_size(http, topic, oracle):
    name = topic()
    await oracle.produce_records(name, 6, fields={"filling": "x" * 400})
    instance = await ConsumerInstance.create_instance(http)
    await instance.subscribe(name)
    one = await instance.poll_records(max_bytes=1)
    assert get_offsets(one) == [0]
    some = await instance.poll_records(max_bytes=1200)
    assert 0 < len(some) < 5
    rest = await instance.poll_until(5 - len(some), max_bytes=1_000_000)
    assert get_offsets(one + some + rest) == [0, 1, 2, 3, 4, 5]


async def test_fewer_bytes_than_wanted_are_waited_for_and_given_when_the_time_is_over(
    http, topic, oracle
):
    name = topic()
    instance = await ConsumerInstance.create_instance(http, responseMinBytes=4000)
    await instance.subscribe(name)
    await oracle.produce_records(name, 1)
    waiting = asyncio.create_task(instance.poll_records())
    done, _ = await asyncio.wait([waiting], timeout=1.0)
    assert not done
    await oracle.produce_records(name, 20, fields={"filling": "x" * 400})
    assert len(await waiting) > 1
    await instance.poll_records(timeout_ms=500)
    await oracle.produce_records(name, 1)
    assert len(await instance.poll_records(timeout_ms=1000)) == 1


async def test_a_commit_is_of_the_last_record_that_was_processed(http, topic, oracle):
    name = topic(partitions=2)
    await oracle.produce_records(name, 3, partition=0)
    instance = await ConsumerInstance.create_instance(http, autoCommitEnable=False)
    await instance.subscribe(name)
    assert (await instance.commit_offsets()).json() == {"offsets": []}
    await instance.poll_until(3)
    answer = await instance.commit_offsets({(name, 0): 1})
    assert answer.status_code == 200
    place = {"topic": name, "partition": 0, "offset": 2, "metadata": ""}
    assert answer.json() == {"offsets": [place]}
    assert await instance.fetch_committed((name, 0)) == {(name, 0): 2}
    assert (await instance.commit_offsets()).json()["offsets"][0]["offset"] == 3
    elsewhere = await ConsumerInstance.create_instance(http, instance.group)
    assert await elsewhere.fetch_committed((name, 0)) == {(name, 0): 3}


async def test_with_auto_commit_a_poll_says_that_the_last_one_is_done_with(http, topic, oracle):
    name = topic()
    await oracle.produce_records(name, 4)
    instance = await ConsumerInstance.create_instance(http)
    await instance.subscribe(name)
    while not await instance.poll_records(max_bytes=1):
        pass
    assert await instance.fetch_committed((name, 0)) == {(name, 0): 0}  # where it began
    await instance.poll_records(max_bytes=1)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            if await instance.fetch_committed((name, 0)) == {(name, 0): 1}:
                break
            await asyncio.sleep(0.05)
    await instance.poll_until(2)
    await instance.delete_instance()
    after = await ConsumerInstance.create_instance(http, instance.group)
    assert await after.fetch_committed((name, 0)) == {(name, 0): 4}


async def test_a_commit_of_the_client_is_not_taken_back_by_the_automatic_one(http, topic, oracle):
    """A second later it was back at what the last poll was through with."""
    name = topic()
    await oracle.produce_records(name, 20)
    instance = await ConsumerInstance.create_instance(http)
    await instance.subscribe(name)
    await instance.poll_until(1)
    await instance.send_request("POST", "/positions", {"offsets": [_place(name, 0, 10)]})
    await instance.poll_until(10)
    assert (await instance.commit_offsets({(name, 0): 19})).status_code == 200
    await asyncio.sleep(1.5)  # longer than between two commits on behalf of a client
    assert await instance.fetch_committed((name, 0)) == {(name, 0): 20}
    await instance.delete_instance()
    after = await ConsumerInstance.create_instance(http, instance.group)
    assert await after.fetch_committed((name, 0)) == {(name, 0): 20}


async def test_what_was_read_of_partitions_that_are_left_is_committed(http, topic, oracle):
    """As in Java's consumer; it was dropped."""
    name = topic(partitions=2)
    await oracle.produce_records(name, 5, partition=0)
    instance = await ConsumerInstance.create_instance(http)
    await instance.assign(name, 0)
    await instance.poll_until(5)
    await instance.assign(name, 1)
    assert await instance.fetch_committed((name, 0)) == {(name, 0): 5}


async def test_a_seek_does_not_wait_for_a_long_poll_that_was_left(http, topic, oracle):
    """It waited until the broker answered the poll, for up to 300 s, and was told 503 after 30."""
    name = topic()
    await oracle.produce_records(name, 10)
    instance = await ConsumerInstance.create_instance(http)
    await instance.subscribe(name)
    await instance.poll_until(10)
    for where, body, first in (
        ("", {"offsets": [_place(name, 0, 5)]}, 5),
        ("/first", {"partitions": [{"topic": name, "partition": 0}]}, 0),
    ):
        long = asyncio.create_task(instance.send_request("GET", "/records", timeout=300_000))
        await asyncio.wait([long], timeout=0.5)
        answer = await instance.send_request("POST", f"/positions{where}", body)
        assert (answer.status_code, (await long).json()) == (204, [])
        assert get_offsets(await instance.poll_until(10 - first)) == list(range(first, 10))


async def test_a_poll_does_not_wait_for_the_bytes_that_an_earlier_one_wanted(http, topic, oracle):
    name = topic()
    instance = await ConsumerInstance.create_instance(http)
    await instance.subscribe(name)
    while not await instance.fetch_assignment():
        await instance.poll_records(timeout_ms=100)
    large = {"timeout": 300_000, "responseMinBytes": 50_000}
    long = asyncio.create_task(instance.send_request("GET", "/records", **large))
    await asyncio.wait([long], timeout=0.5)
    long.cancel()
    await asyncio.wait([long])
    await oracle.produce_records(name, 1)
    assert get_offsets(await instance.poll_records(timeout_ms=20_000)) == [0]


async def test_a_partition_that_is_new_to_a_group_is_read_from_its_start(kafka, topic, oracle):
    """`autoOffsetReset` is for groups that have committed nothing: what was written while nobody
    was there was passed over."""
    name, group = topic(), generate_group()
    async with running_sidecar(kafka.bootstrap, consumer={}) as http:
        await wait_until_ready(http)
        first = await ConsumerInstance.create_instance(http, group, autoOffsetReset="latest")
        await first.subscribe(name)
        while not await first.fetch_assignment():
            await first.poll_records(timeout_ms=100)
        assert await first.poll_records(timeout_ms=300) == [], "it begins at the end"
        await oracle.produce_records(name, 1)
        assert len(await first.poll_records()) == 1
        assert (await first.commit_offsets()).json()["offsets"][0]["offset"] == 1
        await first.delete_instance()
    await asyncio.to_thread(kafka.admin.add_partitions, name, 2)
    await produce_records(
        kafka.bootstrap, name, [RecordToSend(b"%d" % n, partition=1) for n in range(5)]
    )
    async with running_sidecar(kafka.bootstrap, consumer={}) as http:
        await wait_until_ready(http)
        second = await ConsumerInstance.create_instance(http, group, autoOffsetReset="latest")
        await second.subscribe(name)
        assert get_offsets(await second.poll_until(5)) == [0, 1, 2, 3, 4]


@pytest.mark.smoke
async def test_where_retention_was_faster_a_group_goes_on_at_the_first_record_there_is_and_says_so(
    kafka, topic, oracle, caplog
):
    """With `latest` it went on at the end, and what Kafka still had was passed over."""
    name, group = topic(), generate_group()
    await oracle.produce_records(name, 30)
    async with running_sidecar(kafka.bootstrap, consumer={}) as http:
        await wait_until_ready(http)
        first = await ConsumerInstance.create_instance(http, group, autoOffsetReset="latest")
        assert (await first.commit_offsets({(name, 0): 4})).status_code == 200
        await asyncio.to_thread(kafka.admin.delete_records, name, {0: 20})
        await first.subscribe(name)
        assert get_offsets(await first.poll_until(10)) == list(range(20, 30))
        metrics = (await http.get("/metrics")).text
    assert f'gateway_consumer_missing_records_total{{group="{group}"}} 15' in metrics
    assert f"group {group}: {name}-0 has no offset 5 any more: 15 records are lost" in caplog.text


async def test_positions_are_set_without_a_poll_before_by_offset_by_time_and_to_both_ends(
    http, topic, oracle
):
    name = topic(configs={"retention.ms": "-1"})  # what is stamped long ago would be deleted
    await oracle.produce_records(name, 2, timestamp=1_700_000_000_000)
    await oracle.produce_records(name, 3, timestamp=1_700_000_100_000)
    instance = await ConsumerInstance.create_instance(http)
    await instance.subscribe(name)
    place = {"topic": name, "partition": 0}

    async def position(where: str, body: object) -> None:
        answer = await instance.send_request("POST", f"/positions{where}", body)
        assert answer.status_code == 204, answer.text

    await position("", {"offsets": [{**place, "offset": 3}]})
    assert get_offsets(await instance.poll_records()) == [3, 4]
    for at in ("2023-11-14T22:14:00Z", "1700000040000", 1_700_000_040_000):
        await position("", {"timestamps": [{**place, "timestamp": at}]})
        assert get_offsets(await instance.poll_records()) == [2, 3, 4]
    await position("/first", {"partitions": [place]})
    assert get_offsets(await instance.poll_records()) == [0, 1, 2, 3, 4]
    await position("/first", {"partitions": [place]})
    await position("/last", {"partitions": [place]})
    await oracle.produce_records(name, 1)
    assert get_offsets(await instance.poll_records()) == [5]
    nowhere = {"topic": name, "partition": 7}
    refused = await instance.send_request("POST", "/positions/first", {"partitions": [nowhere]})
    assert (refused.status_code, refused.json()["code"]) == (404, "UNKNOWN_PARTITION")


async def test_a_subscription_is_told_changed_and_left(http, topic, oracle):
    one, other = topic(), topic()
    instance = await ConsumerInstance.create_instance(http)
    assert (await instance.send_request("GET", "/subscriptions")).json() == [{"topics": []}]
    none = await instance.send_request("GET", "/records")
    assert (none.status_code, none.json()["code"]) == (409, "NOT_SUBSCRIBED")
    await instance.subscribe(one)
    assert (await instance.send_request("GET", "/subscriptions")).json() == [{"topics": [one]}]
    await oracle.produce_records(one, 1)
    await instance.poll_records()
    assert await instance.fetch_assignment() == [(one, 0)]
    await instance.subscribe(other)
    await oracle.produce_records(other, 1)
    assert [each["topic"] for each in await instance.poll_records()] == [other]
    either = await instance.send_request("POST", "/assignments", {"partitions": []})
    assert (either.status_code, either.json()["code"]) == (409, "OTHER_SUBSCRIPTION")
    assert (await instance.send_request("DELETE", "/subscriptions")).status_code == 204
    assert await instance.fetch_assignment() == []
    await instance.assign(one, 0)
    assert await instance.fetch_assignment() == [(one, 0)]
    wrong = await instance.send_request("POST", "/subscriptions", {"topics": [one + "x"]})
    assert wrong.status_code == 404
    assert one in wrong.json()["description"], "the nearest name is told"


async def test_a_pattern_reads_every_topic_that_matches_it_as_a_whole(http, topic, oracle):
    name = topic()
    await oracle.produce_records(name, 1)
    instance = await ConsumerInstance.create_instance(http)
    pattern = {"topic_pattern": f"{name[:-1]}."}
    assert (await instance.send_request("POST", "/subscriptions", pattern)).status_code == 204
    assert [each["topic"] for each in await instance.poll_records()] == [name]
    assert (await instance.send_request("GET", "/subscriptions")).json() == [{"topics": [name]}]
    for slow in ("(a+)+", "(", ".*.*.*.*.*x"):
        refused = await instance.send_request("POST", "/subscriptions", {"topic_pattern": slow})
        assert refused.status_code == 400


async def test_a_client_that_goes_away_gets_what_it_missed_with_its_next_poll(http, topic, oracle):
    name = topic()
    instance = await ConsumerInstance.create_instance(http)
    await instance.subscribe(name)
    await oracle.produce_records(name, 1)
    await instance.poll_records()
    async with httpx.AsyncClient(base_url=http.base_url, trust_env=False) as hasty:
        with pytest.raises(httpx.ReadTimeout):
            await hasty.get(f"{instance.path}/records?timeout=60000", timeout=0.3)
    await oracle.produce_records(name, 2)
    assert get_offsets(await instance.poll_until(2)) == [1, 2]


async def test_a_second_poll_waits_as_long_as_it_may_and_is_refused_then(http, topic, oracle):
    name = topic()
    instance = await ConsumerInstance.create_instance(http)
    await instance.subscribe(name)
    long = asyncio.create_task(instance.send_request("GET", "/records", timeout=60_000))
    await asyncio.wait([long], timeout=0.3)
    refused = await instance.send_request("GET", "/records", timeout=200)
    assert (refused.status_code, refused.json()["code"]) == (409, "INSTANCE_BUSY")
    await instance.delete_instance()
    assert (await long).json() == [], "what changes the instance ends its poll"


async def test_keys_values_and_headers_are_exact_and_what_cannot_be_read_says_so(
    http, topic, oracle, kafka
):
    from confluent_kafka import Producer

    name = topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(name, key=b"k", value=b'{"n":1e2,"big":123456789012345678901234567890}')
    producer.produce(name, key=b"\xff", value=None)
    headers = [("h", b"one"), ("h", b"two"), ("raw", b"\xfe"), ("none", None)]
    producer.produce(name, key=None, value=b"", headers=headers)
    producer.produce(name, key=b"", value=b"not json")
    producer.flush(30)
    instance = await ConsumerInstance.create_instance(http, format="binary")
    await instance.subscribe(name)
    given = (await instance.send_request("GET", "/records", timeout=30_000, format="json")).text
    assert '"n":1e2,"big":123456789012345678901234567890' in given, "as it was written"
    place = {"topic": name, "partition": 0}
    await instance.send_request("POST", "/positions/first", {"partitions": [place]})
    first, tombstone, empty, wrong = await instance.poll_until(4, format="json", keyFormat="string")
    assert first["key"] == "k" and first["timestamp"] > 0 and first["headers"] == {}
    assert tombstone["value"] is None
    assert base64.b64decode(tombstone["key"]) == b"\xff" and "key:" in tombstone["error"]
    assert (empty["key"], empty["value"]) == (None, "")
    raw = {"base64": base64.b64encode(b"\xfe").decode()}
    assert empty["headers"] == {"h": ["one", "two"], "raw": raw, "none": None}
    assert wrong["key"] == "" and base64.b64decode(wrong["value"]) == b"not json"
    assert "value:" in wrong["error"]
    await instance.send_request("POST", "/positions/first", {"partitions": [place]})
    binary = await instance.poll_until(4, format="binary", headerFormat="binary")
    assert binary[2]["headers"]["raw"] == raw["base64"]
    assert base64.b64decode(binary[0]["key"]) == b"k"


async def test_names_of_confluent_mean_the_same_and_wrong_ones_are_told(http):
    group = generate_group()

    async def create(**body: object) -> httpx.Response:
        return await http.post(f"/consumers/{group}", json=body)

    made = await create(
        name="mine", **{"auto.offset.reset": "earliest", "auto_commit_enable": "false"}
    )
    assert made.json() == {
        "instanceId": "mine",
        "baseUri": f"{http.base_url}/consumers/{group}/instances/mine".replace("//c", "/c"),
    }
    again = await create(name="mine")
    assert (again.status_code, again.json()["code"]) == (409, "INSTANCE_EXISTS")
    for wrong, named in (
        ({"format": "jsonn"}, "format"),
        ({"autoOffsetReset": "middle"}, "autoOffsetReset"),
        ({"fetch.min.bytes": -5}, "fetch.min.bytes"),
        ({"autoOffsetRest": "latest"}, "autoOffsetReset"),
        ({"name": "a/b"}, "name"),
    ):
        refused = await create(**wrong)
        assert refused.status_code == 400, refused.text
        assert named in refused.text
    proxied = {"forwarded": "host=api.example:8443;proto=https, host=inner"}
    by_proxy = await http.post(f"/consumers/{group}", json={"name": "far"}, headers=proxied)
    far = f"https://api.example:8443/consumers/{group}/instances/far"
    assert by_proxy.json()["baseUri"] == far


async def test_an_instance_that_is_gone_or_never_was_says_why(kafka, topic):
    consumer = {"instanceTimeout": "500ms", "baseUri": "https://this.example"}
    async with running_sidecar(kafka.bootstrap, consumer=consumer) as http:
        await wait_until_ready(http)
        deleted = await ConsumerInstance.create_instance(http, name="deleted")
        await deleted.delete_instance()
        expired = await ConsumerInstance.create_instance(http, name="expired")
        await expired.subscribe(topic())

        async def why(group: str, name: str) -> str:
            answer = await http.get(f"/consumers/{group}/instances/{name}/assignments")
            if answer.status_code == 200:
                return ""
            assert answer.status_code == 404
            told = answer.json()
            assert told["code"] == "INSTANCE_NOT_FOUND" and told["error_code"] == 40403
            return f"{told['message']}; {told['description']}"

        gone = await until_gone(http)
        assert "expired" in await why(expired.group, expired.name), gone
        assert "deleted" in await why(deleted.group, deleted.name)
        assert "was never here" in await why(deleted.group, "other")
        elsewhere = "0123abcd-12345678-1234-1234-1234-123456789abc"
        assert "another gateway" in await why(deleted.group, elsewhere)
        made = await http.post("/consumers/g", json={})
        assert made.json()["baseUri"].startswith("https://this.example/consumers/g/instances/")


async def until_gone(http: httpx.AsyncClient) -> str:
    """Until an instance expired, by the metrics, which do not keep it alive."""
    async with asyncio.timeout(60):
        while True:
            text = (await http.get("/metrics")).text
            if 'gateway_consumer_ended_total{reason="expired"} 1' in text:
                return text
            await asyncio.sleep(0.05)
