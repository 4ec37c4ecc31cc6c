from __future__ import annotations

from typing import Any

import pytest

from gateway.config.sections.sidecar import Consumer
from gateway.sidecar.consumer.instance_options import Wishes
from gateway.sidecar.consumer.instances import REMEMBERED, Gone, Instances, Key
from gateway.sidecar.http.status import Refusal


def some(**settings: Any) -> Instances:
    """Nothing of a cluster is touched by instances that are subscribed to nothing."""
    return Instances(None, Consumer(**settings))  # type: ignore[arg-type]


def added(instances: Instances, name: str = "", identity: str = "") -> str:
    wishes = Wishes.of({"name": name}, Consumer())
    return instances.add("g", wishes, dialect="contract", identity=identity).name


async def test_a_name_is_taken_once_and_made_where_there_is_none():
    instances = some()
    assert added(instances, "mine") == "mine"
    with pytest.raises(Refusal, match="mine") as taken:
        added(instances, "mine")
    assert (taken.value.status, taken.value.code) == (409, "INSTANCE_EXISTS")
    assert added(instances) != added(instances)


async def test_there_are_no_more_than_there_may_be():
    instances = some(instances=2)
    added(instances), added(instances)
    with pytest.raises(Refusal) as one_too_many:
        added(instances)
    assert one_too_many.value.status == 429
    await instances.remove(next(iter(instances)))
    added(instances)


async def test_an_instance_is_found_only_by_whom_it_was_made_for():
    instances = some()
    added(instances, "mine", identity="alice")
    assert instances.get("g", "mine", "alice").name == "mine"
    with pytest.raises(Refusal, match="never here") as unknown:
        instances.get("g", "mine", "bob")
    assert unknown.value.status == 404


async def test_who_comes_late_hears_why():
    instances, others = some(), some()
    name = added(instances)
    await instances.remove(instances.get("g", name))
    for asked, why in ((name, "deleted"), ("x", "never here"), (added(others), "another gateway")):
        with pytest.raises(Refusal, match=why):
            instances.get("g", asked)


def test_what_is_gone_is_remembered_for_a_while_and_the_latest_reason_counts():
    gone = Gone()
    gone.add(Key("g", "first"), "expired")
    gone.add(Key("g", "twice"), "expired")
    gone.add(Key("g", "twice"), "deleted")
    assert gone.why(Key("g", "twice")) == "deleted"
    for number in range(2 * REMEMBERED):
        gone.add(Key("g", str(number)), "closed")
    assert gone.why(Key("g", "first")) is None
    assert gone.why(Key("g", str(2 * REMEMBERED - 1))) == "closed"
