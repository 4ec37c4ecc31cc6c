"""Consumer instances of a sidecar, as clients use them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

Records = list[dict[str, Any]]


def a_group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


class Consuming:
    """One instance, in the contract's words. http: of its sidecar."""

    def __init__(self, http: httpx.AsyncClient, group: str, name: str) -> None:
        self.http, self.group, self.name = http, group, name
        self.path = f"/consumers/{group}/instances/{name}"

    @classmethod
    async def created(
        cls, http: httpx.AsyncClient, group: str | None = None, **body: Any
    ) -> Consuming:
        """From the earliest record on, unless told otherwise."""
        group = group or a_group()
        wanted = {"autoOffsetReset": "earliest", **body}
        answer = await http.post(f"/consumers/{group}", json=wanted)
        assert answer.status_code == 200, answer.text
        return cls(http, group, answer.json()["instanceId"])

    async def ask(self, method: str, what: str, body: Any = None, **params: Any) -> httpx.Response:
        return await self.http.request(
            method, f"{self.path}{what}", json=body, params=params or None
        )

    async def subscribe(self, *topics: str) -> None:
        answer = await self.ask("POST", "/subscriptions", {"topics": topics})
        assert answer.status_code == 204, answer.text

    async def assign(self, topic: str, *partitions: int) -> None:
        body = {"partitions": [{"topic": topic, "partition": each} for each in partitions]}
        answer = await self.ask("POST", "/assignments", body)
        assert answer.status_code == 204, answer.text

    async def poll(self, timeout: int = 30_000, **params: Any) -> Records:  # noqa: ASYNC109
        """timeout in milliseconds."""
        answer = await self.ask("GET", "/records", timeout=timeout, **params)
        assert answer.status_code == 200, answer.text
        found: Records = answer.json()
        return found

    async def poll_all(self, count: int, **params: Any) -> Records:
        """As often as it takes; each poll may take its whole time."""
        found: Records = []
        while len(found) < count:
            more = await self.poll(**params)
            assert more, f"{len(found)} of {count} records, and then none"
            found += more
        return found

    async def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> httpx.Response:
        body = None if offsets is None else {"offsets": _places(offsets)}
        return await self.ask("POST", "/offsets", body)

    async def committed(self, *tps: tuple[str, int]) -> dict[tuple[str, int], int]:
        body = {"offsets": [{"topic": topic, "partition": each} for topic, each in tps]}
        answer = await self.ask("PUT", "/offsets", body)
        assert answer.status_code == 200, answer.text
        return {
            (each["topic"], each["partition"]): each["offset"] for each in answer.json()["offsets"]
        }

    async def assignment(self) -> list[tuple[str, int]]:
        (only,) = (await self.ask("GET", "/assignments")).json()
        return [(each["topic"], each["partition"]) for each in only["partitions"]]

    async def delete(self) -> None:
        answer = await self.ask("DELETE", "")
        assert answer.status_code == 204, answer.text


def _places(offsets: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in offsets.items()
    ]


def offsets_of(records: Iterable[Mapping[str, Any]]) -> list[int]:
    return [record["offset"] for record in records]
