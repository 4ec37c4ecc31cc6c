from __future__ import annotations

import json

from gateway.pipeline.unreadable.around import split


def test_a_topic_is_read_in_as_many_pieces_as_its_partition_with_the_most_runs_asks_for():
    first, second, third = split("t", 3, {0: [(5, 7), (9, 10)], 2: [(0, 1)]})
    assert {name: json.loads(text)["t"] for name, text in first.items()} == {
        "assign": [0, 1, 2],
        "startingOffsets": {"0": -2, "1": -2, "2": -2},
        "endingOffsets": {"0": 5, "1": -1, "2": 0},
    }
    assert {name: json.loads(text)["t"] for name, text in second.items()} == {
        "assign": [0, 2],
        "startingOffsets": {"0": 7, "2": 1},
        "endingOffsets": {"0": 9, "2": -1},
    }
    assert json.loads(third["startingOffsets"]) == {"t": {"0": 10}}
    assert json.loads(third["endingOffsets"]) == {"t": {"0": -1}}
