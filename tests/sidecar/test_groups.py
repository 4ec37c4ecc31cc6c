"""Groups as operators see them: on a real broker, as the embedded one has none."""

from __future__ import annotations

import uuid

import httpx
from support.group_members import commit_positions, running_member
from support.records import RecordToSend, produce_records
from support.sidecars import running_sidecar, wait_until_ready
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition


async def seek_group(http: httpx.AsyncClient, group: str, **where: object) -> httpx.Response:
    return await http.post(f"/adm/groups/{group}/offsets", json={"offsets": [where]})


async def test_operators_see_how_far_behind_a_group_is_and_move_it_while_nobody_is_in_it(
    kafka, topic
):
    name, group = topic(partitions=2), f"group-{uuid.uuid4().hex[:12]}"
    zero = TopicPartition(name, 0)
    place = {"topic": name, "partition": 0}
    async with (
        running_sidecar(kafka.bootstrap, admin={}) as http,
        open_cluster(kafka.bootstrap, name) as cluster,
    ):
        await wait_until_ready(http)
        await produce_records(kafka.bootstrap, name, [RecordToSend(b"x", partition=0)] * 10)
        async with running_member(cluster, group, [name], auto_offset_reset="earliest") as one:
            await wait_until(
                lambda: len(one.records) >= 10 and len(one.owned_partitions) == 2, timeout_s=60
            )
            await commit_positions(one.consumer)
            body = (await http.get(f"/adm/groups/{group}/lag")).json()
            assert body["lag"] == 0
            assert {
                partition["partition"]: partition["end"] for partition in body["partitions"]
            } == {0: 10, 1: 0}
            assert all(partition["owner"] for partition in body["partitions"])
            listed = (await http.get("/adm/groups")).json()
            assert group in [item["group"] for item in listed]
            answer = await seek_group(http, group, **place, offset=3)
            assert (answer.status_code, answer.json()["code"]) == (409, "GROUP_IN_USE")

        for where, offset in (
            ({"offset": 3}, 3),
            ({"position": "earliest"}, 0),
            ({"position": "latest"}, 10),
            ({"timestamp": 0}, 0),
            ({"timestamp": 2**52}, 10),
        ):
            answer = await seek_group(http, group, **place, **where)
            assert answer.status_code == 200, answer.text
            assert answer.json()["offsets"] == [{**place, "offset": offset}]
        await seek_group(http, group, **place, offset=4)
        body = (await http.get(f"/adm/groups/{group}/lag")).json()
        found = {partition["partition"]: partition for partition in body["partitions"]}
        assert (found[0]["committed"], found[0]["lag"], found[0]["owner"]) == (4, 6, None)
        async with running_member(cluster, group, [name]) as one:
            await wait_until(lambda: len(one.records) >= 6, timeout_s=60)
            offsets = [record.offset for record in one.records if record.tp == zero]
            assert offsets == [4, 5, 6, 7, 8, 9]

        answer = await http.get(f"/adm/groups/{group}x/lag")
        assert (answer.status_code, answer.json()["code"]) == (404, "UNKNOWN_GROUP")
        for wrong, status in (
            ({"topic": name, "partition": 9, "offset": 1}, 400),
            ({"topic": name, "partition": 0, "offset": 1, "position": "latest"}, 400),
            ({"topic": name, "partition": 0}, 400),
            ({"topic": name, "partition": 0, "offset": 10**12}, 400),
            ({"topic": f"{name}x", "partition": 0, "offset": 1}, 404),
        ):
            assert (await seek_group(http, group, **wrong)).status_code == status, wrong
