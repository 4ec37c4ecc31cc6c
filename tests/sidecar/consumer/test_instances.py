from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.config.sections.sidecar import Consumer
from gateway.sidecar.consumer.instance_options import InstanceOptions
from gateway.sidecar.consumer.instances import (
    MAX_CONCURRENT_LEAVES,
    MAX_REMEMBERED_INSTANCES,
    ConsumerInstances,
    EndedInstances,
    InstanceKey,
)
from gateway.sidecar.http.status import StatusError


def build_instances(**settings: Any) -> ConsumerInstances:
    """Nothing of a cluster is touched by instances that are subscribed to nothing."""
    return ConsumerInstances(None, Consumer(**settings))  # type: ignore[arg-type]


def add_instance(instances: ConsumerInstances, name: str = "", identity: str = "") -> str:
    wishes = InstanceOptions.from_body({"name": name}, Consumer())
    return instances.add("g", wishes, dialect="contract", identity=identity).name


async def test_a_name_is_unique_and_generated_if_missing():
    instances = build_instances()
    assert add_instance(instances, "mine") == "mine"
    with pytest.raises(StatusError, match="mine") as taken:
        add_instance(instances, "mine")
    assert (taken.value.status, taken.value.code) == (409, "INSTANCE_EXISTS")
    assert add_instance(instances) != add_instance(instances)


async def test_there_are_no_more_than_there_may_be():
    instances = build_instances(instances=2)
    add_instance(instances), add_instance(instances)
    with pytest.raises(StatusError) as one_too_many:
        add_instance(instances)
    assert one_too_many.value.status == 429
    await instances.remove(next(iter(instances)))
    add_instance(instances)


async def test_one_client_leaves_as_many_to_others_as_it_has():
    """One took all 10,000 of a process, within 14 seconds, for as long as it liked."""
    instances = build_instances(instances=8)
    for identity, count in (("alice", 4), ("bob", 2), ("carol", 1), ("dave", 1)):
        for _ in range(count):
            add_instance(instances, identity=identity)
        with pytest.raises(StatusError) as one_too_many:
            add_instance(instances, identity=identity)
        assert one_too_many.value.status == 429


async def test_an_instance_is_found_only_by_its_own_client():
    instances = build_instances()
    add_instance(instances, "mine", identity="alice")
    assert instances.get("g", "mine", "alice").name == "mine"
    with pytest.raises(StatusError, match="never here") as unknown:
        instances.get("g", "mine", "bob")
    assert unknown.value.status == 404


async def test_a_late_request_gets_the_reason():
    instances, others = build_instances(), build_instances()
    name = add_instance(instances)
    await instances.remove(instances.get("g", name))
    for asked, why in (
        (name, "deleted"),
        ("x", "never here"),
        (add_instance(others), "another gateway"),
    ):
        with pytest.raises(StatusError, match=why):
            instances.get("g", asked)


async def test_clients_that_read_slowly_hold_up_no_end_of_other_instances():
    """Each of their deletes held one of the slots while it waited for its poll."""
    instances = build_instances()
    async with AsyncExitStack() as polls:
        deletes = []
        for number in range(MAX_CONCURRENT_LEAVES):
            slow = instances.get("g", add_instance(instances, f"slow-{number}"))
            await polls.enter_async_context(slow.lock_for_poll(0.0))
            deletes.append(asyncio.create_task(instances.remove(slow)))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await instances.remove(instances.get("g", add_instance(instances)))
        assert not any(delete.done() for delete in deletes)
    await asyncio.gather(*deletes)


def test_what_is_gone_is_remembered_for_a_while_and_the_latest_reason_counts():
    gone = EndedInstances()
    gone.add(InstanceKey("g", "first"), "expired")
    gone.add(InstanceKey("g", "twice"), "expired")
    gone.add(InstanceKey("g", "twice"), "deleted")
    assert gone.get_reason(InstanceKey("g", "twice")) == "deleted"
    for number in range(2 * MAX_REMEMBERED_INSTANCES):
        gone.add(InstanceKey("g", str(number)), "closed")
    assert gone.get_reason(InstanceKey("g", "first")) is None
    assert gone.get_reason(InstanceKey("g", str(2 * MAX_REMEMBERED_INSTANCES - 1))) == "closed"
