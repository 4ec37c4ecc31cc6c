"""Consumer instances of a sidecar, as clients use them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

Records = list[dict[str, Any]]


def generate_group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


class ConsumerInstance:
    """One instance, in the contract's words. http: of its sidecar."""

    def __init__(self, http: httpx.AsyncClient, group: str, name: str) -> None:
        self.http, self.group, self.name = http, group, name
        self.path = f"/consumers/{group}/instances/{name}"

    @classmethod
    async def create_instance(
        cls, http: httpx.AsyncClient, group: str | None = None, **body: Any
    ) -> ConsumerInstance:
        """From the earliest record on, unless told otherwise."""
        group = group or generate_group()
        wanted = {"autoOffsetReset": "earliest", **body}
        answer = await http.post(f"/consumers/{group}", json=wanted)
        assert answer.status_code == 200, answer.text
        return cls(http, group, answer.json()["instanceId"])

    async def send_request(
        self, method: str, subpath: str, body: Any = None, **params: Any
    ) -> httpx.Response:
        return await self.http.request(
            method, f"{self.path}{subpath}", json=body, params=params or None
        )

    async def subscribe(self, *topics: str) -> None:
        answer = await self.send_request("POST", "/subscriptions", {"topics": topics})
        assert answer.status_code == 204, answer.text

    async def assign(self, topic: str, *partitions: int) -> None:
        body = {"partitions": [{"topic": topic, "partition": each} for each in partitions]}
        answer = await self.send_request("POST", "/assignments", body)
        assert answer.status_code == 204, answer.text

    async def poll_records(self, timeout_ms: int = 30_000, **params: Any) -> Records:
        """timeout in milliseconds."""
        answer = await self.send_request("GET", "/records", timeout=timeout_ms, **params)
        assert answer.status_code == 200, answer.text
        found: Records = answer.json()
        return found

    async def poll_until(self, record_count: int, **params: Any) -> Records:
        """As often as it takes; each poll may take its whole time."""
        found: Records = []
        while len(found) < record_count:
            more = await self.poll_records(**params)
            assert more, f"{len(found)} of {record_count} records, and then none"
            found += more
        return found

    async def commit_offsets(
        self, offsets: Mapping[tuple[str, int], int] | None = None
    ) -> httpx.Response:
        body = None if offsets is None else {"offsets": _build_offsets(offsets)}
        return await self.send_request("POST", "/offsets", body)

    async def fetch_committed(self, *partitions: tuple[str, int]) -> dict[tuple[str, int], int]:
        body = {"offsets": [{"topic": topic, "partition": each} for topic, each in partitions]}
        answer = await self.send_request("PUT", "/offsets", body)
        assert answer.status_code == 200, answer.text
        return {
            (each["topic"], each["partition"]): each["offset"] for each in answer.json()["offsets"]
        }

    async def fetch_assignment(self) -> list[tuple[str, int]]:
        (only,) = (await self.send_request("GET", "/assignments")).json()
        return [(each["topic"], each["partition"]) for each in only["partitions"]]

    async def delete_instance(self) -> None:
        answer = await self.send_request("DELETE", "")
        assert answer.status_code == 204, answer.text


def _build_offsets(offsets: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in offsets.items()
    ]


def get_offsets(records: Iterable[Mapping[str, Any]]) -> list[int]:
    return [record["offset"] for record in records]
