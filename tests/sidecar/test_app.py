"""Paths and methods of all components, without Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.sidecars import running_sidecar


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    backend = {"host": "http://127.0.0.1:1"}
    group = {"group": "shop/eu west", "topics": ["orders"], "backend": backend}
    sections: dict[str, Any] = {"deadLetter": {}, "consumer": {}, "producer": {}, "admin": {}}
    async with running_sidecar("127.0.0.1:1", **sections, reactive={"groups": group}) as http:
        yield http


@pytest.mark.parametrize(
    "path, allow",
    [
        ("/consumers/deadLetter/reactive", "GET"),
        ("/consumers/g/instances/i/records", "GET"),
        ("/topics/orders", "GET, POST"),
        ("/consumers/deadLetter/active/offsets", "POST"),
    ],
)
async def test_head_changes_nothing_and_is_told_the_methods(http, path, allow):
    """HEAD delivered a batch of dead letters, and `Allow` had the first method only."""
    answer = await http.head(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)


async def test_head_answers_as_get_where_that_changes_nothing(http):
    for path in ("/health/liveness", "/reactive", "/openapi.json"):
        wanted, answer = await http.get(path), await http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-length"] == wanted.headers["content-length"]


async def test_a_group_whose_name_has_a_slash_is_found_by_it(http):
    """It was in the list of groups, and each path with its name was a 404."""
    path = "/reactive/shop%2Feu%20west"
    answer = await http.post(f"{path}/pause")
    assert answer.status_code == 200, answer.text
    assert (await http.get(path)).json()["group"] == "shop/eu west"
    assert (await http.get("/reactive/shop")).status_code == 404


async def test_no_other_character_of_a_path_is_a_slash(http):
    """U+E02F stands for `%2F` inside, and was read as a slash where a client sent it."""
    for name in ("shop\ue02feu west", "shop\ue02f0eu west", "shop/\ue02f"):
        answer = await http.get(f"/reactive/{quote(name, safe='')}")
        assert answer.status_code == 404
        assert repr(name) in answer.json()["message"]


@pytest.mark.parametrize("size, is_too_large", [(3_700_000, False), (4_300_000, True)])
async def test_as_many_dead_letters_are_handed_in_without_guards_as_with(http, size, is_too_large):
    """The server refused bodies over 1,000,000 bytes, unless the sidecar was guarded."""
    headers = {"content-type": "application/json"}
    answer = await http.post("/consumers/deadLetter/active", content=b" " * size, headers=headers)
    assert (answer.status_code == 413) == is_too_large, answer.text


async def test_an_idempotency_key_is_given_once(http):
    """Of two keys, the first one counted."""
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    body = {"records": [{"value": "x"}]}
    answer = await http.post("/producers/orders", json=body, headers=headers)
    assert answer.status_code == 400
    assert "header Idempotency-Key" in answer.text


async def test_only_records_to_write_are_a_stream_without_limits(http):
    """NDJSON had no limit of bytes or of time on any path, and was in no account of memory."""
    headers = {"content-type": "application/x-ndjson"}
    for path in ("/reactive/shop/pause", "/consumers/g/instances/i/records"):
        answer = await http.post(path, content=b" " * 4_300_000, headers=headers)
        assert answer.status_code == 413, path
