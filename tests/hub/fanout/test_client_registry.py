"""The clients of a hub are visited while they come and go."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.hub.fanout.client import NOT_REGISTERED, ClientRegistry


class FakeClient:
    """A client that is nothing but its place."""

    def __init__(self) -> None:
        self.registry_index = NOT_REGISTERED


def filled(count: int) -> tuple[ClientRegistry, list[Any]]:
    registry = ClientRegistry()
    clients = [FakeClient() for _ in range(count)]
    for client in clients:
        registry.add(client)
    return registry, clients


def test_it_has_what_was_added_and_not_discarded():
    registry, (first, second, third) = filled(3)
    registry.discard(first)
    registry.discard(first)
    registry.discard(FakeClient())
    assert set(registry) == {second, third} and len(registry) == 2
    assert first not in registry and second in registry
    registry.add(first)
    assert set(registry) == {first, second, third}


@given(count=st.integers(0, 12), steps=st.lists(st.lists(st.integers(0, 30), max_size=4)))
def test_a_walk_visits_all_that_stay_while_others_come_and_go(count: int, steps: list[list[int]]):
    """Each step of the walk is followed by some clients that leave, by number, or come."""
    registry, clients = filled(count)
    staying = set(clients)
    visited = []
    for n, client in enumerate(registry):
        visited.append(client)
        for number in steps[n] if n < len(steps) else []:
            present = list(clients)
            if number < len(present):
                leaving = present[number]
                registry.discard(leaving)
                clients.remove(leaving)
                staying.discard(leaving)
            else:
                clients.append(FakeClient())
                registry.add(clients[-1])
    assert staying <= set(visited)
    assert set(registry) == set(clients) and len(registry) == len(clients)
