"""Files that progress is read from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.query_progress import build_progress

from gateway.errors import PipelineError
from gateway.pipeline.doctor.query_run import group_by_query, load_records

RECORDS = [build_progress(each) for each in range(4)]


def ids(records: list[dict[str, Any]]) -> list[int]:
    return [each["batchId"] for each in records]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(RECORDS),
        json.dumps(RECORDS, indent=2),
        "\n".join(map(json.dumps, RECORDS)),
        "\n".join(json.dumps({"progress": each}) for each in RECORDS) + "\n",
        "\n".join(map(json.dumps, RECORDS)) + '\n{"batchId": 4, "dura',
    ],
    ids=["a list", "a list for people", "lines", "events of a listener", "cut off"],
)
def test_saved_progress_is_read(tmp_path: Path, text: str):
    saved = tmp_path / "saved"
    saved.write_text(text)
    assert ids(load_records(saved)) == [0, 1, 2, 3]


def test_one_object_is_one_batch(tmp_path: Path):
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(RECORDS[0]))
    assert ids(load_records(saved)) == [0]


@pytest.mark.parametrize("text", ["{}", "[]", "", "no json\nat all", '{"spark": "yes"}', "[1]"])
def test_what_is_no_progress_is_refused(tmp_path: Path, text: str):
    saved = tmp_path / "saved.json"
    saved.write_text(text)
    with pytest.raises(PipelineError, match=r"saved\.json"):
        load_records(saved)


def test_several_queries_are_told_apart():
    found = group_by_query(
        [*RECORDS, build_progress(9) | {"name": "clicks"}, build_progress(1) | {"name": None}]
    )
    assert list(found) == ["orders", "clicks", "0b1c"]
    assert ids(found["orders"]) == [0, 1, 2, 3]
