"""The product's promise, over everything that can happen (see `machine` and `oracle`).

`make model` runs it for an hour; GATEWAY_MODEL_SECONDS says for how long.
"""

from __future__ import annotations

import os
import time

import pytest
from model.running import draw_seed, run_seed

SECONDS = float(os.environ.get("GATEWAY_MODEL_SECONDS", "0"))
SEEDS = range(15)  # always the same ones, about 100,000 steps
DAY_SEEDS = SEEDS[:2]


def print_line(capsys: pytest.CaptureFixture[str], line: str) -> None:
    with capsys.disabled():
        print(f"\n{line}", end=" ", flush=True)


@pytest.mark.parametrize("number", DAY_SEEDS)
def test_every_record_comes_once_and_in_order_or_a_gap_says_what_is_missing(number: int):
    assert run_seed(number) > 4_000


@pytest.mark.night
@pytest.mark.timeout(1200)
def test_so_it_is_with_more_seeds_and_one_that_no_run_had(capsys: pytest.CaptureFixture[str]):
    steps = sum(map(run_seed, SEEDS[len(DAY_SEEDS) :]))
    number = draw_seed()
    print_line(capsys, f"model: {steps} steps clean; now seed {number}")
    run_seed(number)


@pytest.mark.night
@pytest.mark.skipif(not SECONDS, reason="GATEWAY_MODEL_SECONDS is not set; make model sets it")
@pytest.mark.timeout(SECONDS + 600)
def test_the_same_holds_for_as_long_as_one_likes(capsys: pytest.CaptureFixture[str]):
    began, steps, number = time.monotonic(), 0, draw_seed()
    while (spent := time.monotonic() - began) < SECONDS:
        print_line(capsys, f"model: {steps} steps clean in {spent:.0f} s; now seed {number}")
        steps += run_seed(number)
        number += 1
    print_line(capsys, f"model: {steps} steps clean")
