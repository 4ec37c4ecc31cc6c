"""What a job needs, and the page that answers with it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.pipeline import plan
from gateway.pipeline.plan import KINDS, JobRequirements, build_plan

PAGE = (Path(__file__).parents[2] / "examples" / "pipeline" / "sizing.md").read_text()
SHOWN = re.findall(r"```console\n\$ gateway (.+)\n([^`]+)```", PAGE)


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "plan", *arguments])


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_commands_of_the_page_print_what_it_shows(command: str, output: str):
    found = CliRunner().invoke(app, shlex.split(command))
    assert found.output == output


def test_the_page_answers_seven_questions_and_their_follow_ups():
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    follow_ups = [each for each in headings if each.startswith("Follow-up: ")]
    assert (len(headings), len(follow_ups)) == (14, 7)
    for part in PAGE.split("\n## ")[1:]:
        assert "$ gateway pipeline plan" in part


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_events_need_twice_the_cores(kind: str):
    one, two = (build_plan(JobRequirements(kind, events=events)) for events in (1e6, 2e6))
    assert two["cores"] == pytest.approx(2 * one["cores"], rel=0.05)


@pytest.mark.parametrize("once", [True, False])
def test_more_output_costs_cores(once: bool):
    none, some, more = (
        build_plan(JobRequirements(events=1e6, output=rows, exactly_once=once))["cores"]
        for rows in (0.0, 1e5, 1e6)
    )
    assert none < some < more


def test_more_executors_have_less_state_each_and_restart_sooner():
    few, many = (
        build_plan(JobRequirements("sessions", events=1e5, state=2e11, keys=1e9, executors=each))
        for each in (10, 40)
    )
    assert many["state an executor"] == few["state an executor"] / 4
    assert many["restart"] < few["restart"]
    assert many["busy"] < few["busy"]


def test_no_partition_holds_more_than_two_gigabytes():
    made = build_plan(JobRequirements("sessions", events=1e4, state=1e12, keys=1e9))
    assert 1e12 / made["state.partitions"] <= 2e9


def test_executors_that_are_too_few_are_more_than_busy_and_never_catch_up():
    made = build_plan(JobRequirements(events=1e6, executors=2))
    assert made["busy"] > 100
    assert "then catching up" not in {line.name for line in made.lines}


def test_executors_may_be_left_open_by_a_zero():
    """It was divided by."""
    assert build_plan(JobRequirements(executors=0))["executors"] == 1


def test_each_bucket_of_a_hot_key_is_less_than_a_core_can():
    made = build_plan(JobRequirements("join", events=1e5, hot=0.5))
    share = 0.5 * 1e5 / made["salt.buckets"]
    assert share <= plan.EVENT_RATES["join"].value * plan.MAX_UTILIZATION


@pytest.mark.parametrize(
    "wrong",
    [
        *(("--events", "many"), ("--kind", "magic"), ("--gap", "soon"), ("--guarantee", "no")),
        *(("--executors", "0"), ("--active", "0"), ("--bandwidth", "0")),
    ],
)
def test_wrong_usage_is_told(wrong: tuple[str, str]):
    assert ask(*wrong).exit_code == 2


def test_every_figure_has_a_source():
    found = [each for each in vars(plan).values() if isinstance(each, plan.Estimate)]
    found += [*plan.EVENT_RATES.values(), *plan.LATENCIES_S.values()]
    assert len(found) > 10
    assert all(each.source and each.value > 0 for each in found)
    assert not any(each.source.startswith("assumed") for each in plan.LATENCIES_S.values())
