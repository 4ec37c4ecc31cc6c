"""Reading what Spark's status store says."""

from __future__ import annotations

import pytest

from gateway.pipeline.progress.tasks import parse_seconds, summarize_stage


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0 ms", 0.0),
        ("total (min, med, max (stageId: taskId))\n65 ms (28 ms, 37 ms, 37 ms (stage 6.0))", 0.065),
        ("total (min, med, max (stageId: taskId))\n1.2 s (0.5 s, 0.7 s, 0.7 s (stage 6.0))", 1.2),
        ("total (min, med, max (stageId: taskId))\n2.5 min (1 s, 1 s, 1 s (stage 6.0))", 150.0),
        ("total (min, med, max (stageId: taskId))\n1.50 h (1 s, 1 s, 1 s (stage 6.0))", 5400.0),
        ("20,000", 0.0),
    ],
)
def test_times_for_people_are_read(text: str, meant: float):
    assert parse_seconds(text) == pytest.approx(meant)


def test_a_stage_without_summary_has_its_sums():
    stage = {
        "numTasks": 2, "executorRunTime": 3000, "executorCpuTime": 2_000_000_000, "jvmGcTime": 10,
        "inputRecords": 7, "shuffleReadRecords": 0, "shuffleReadBytes": 0, "shuffleWriteBytes": 9,
        "submissionTime": "2026-11-21T19:18:33.680GMT",
        "completionTime": "2026-11-21T19:18:35.180GMT",
    }  # fmt: skip
    found = summarize_stage(stage, {})
    assert found["seconds"] == pytest.approx(1.5) and found["total"] == 3.0
    assert not found["last"] and not found["shuffles"] and found["slowest"] == 0.0
