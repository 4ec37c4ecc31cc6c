"""The reference has all that the code declares, and is what it would be if it were written now."""

from __future__ import annotations

import re

from docgen.cli import iter_commands
from docgen.configuration import iter_examples
from docgen.errors import PROBLEMS, SIDECAR_CODES, find_problems, find_sidecar_codes
from docgen.pages import build_pages, find_outdated
from docgen.schema import iter_sections
from support.doc_blocks import DOCS, list_pages

from gateway.config import build_json_schema
from gateway.core.log.record import GapReason
from gateway.hub.wires.control_events import CONTROL_EVENTS
from gateway.telemetry.catalog import METRICS

SCHEMA = build_json_schema()
REFERENCE = DOCS / "reference"
CONFIGURATION = "\n".join(page.read_text() for page in (REFERENCE / "configuration").glob("*.md"))
WRITTEN = "\n".join(page.read_text() for page in list_pages())


def test_the_pages_are_what_the_code_says():
    assert find_outdated(build_pages()) == [], "run `make docs`"


def test_every_option_is_in_the_configuration_reference():
    names = set(re.findall(r"^ *- \[?`([^`]+)`", CONFIGURATION, re.M))
    names |= set(re.findall(r"^## `.*` of `(\w+): ", CONFIGURATION, re.M))
    assert {name for each in SCHEMA["$defs"].values() for name in each["properties"]} <= names
    assert SCHEMA["properties"].keys() <= names | {
        page.stem for page in (REFERENCE / "configuration").glob("*.md")
    }


def test_every_section_is_reached():
    # The short form of a route has the options of its long form.
    expected = {title for title in SCHEMA["$defs"] if not title.startswith("Short")}
    assert {section.title for section in iter_sections(SCHEMA)} == expected


def test_every_section_with_options_has_an_example():
    shown = {section.title for _, section, _ in iter_examples(SCHEMA)}
    wanted = {s.title for s in iter_sections(SCHEMA) if s.node.get("properties")}
    assert wanted - shown == set()


def test_every_option_has_a_description():
    assert re.findall(r"^ *- .*: ?$", CONFIGURATION, re.M) == []


def test_every_event_and_reason_of_a_gap_is_in_the_reference():
    text = (REFERENCE / "events.md").read_text()
    for name in CONTROL_EVENTS:
        assert f"## `{name}`" in text
    assert {str(reason.value) for reason in GapReason} <= set(re.findall(r'"([\w-]+)"', text))


def test_every_metric_is_in_the_reference():
    text = (REFERENCE / "metrics.md").read_text()
    for metric in METRICS:
        assert re.search(rf"^- `{metric.exposed_name}[`{{]", text, re.M)


def test_every_command_is_in_the_reference():
    text = (REFERENCE / "cli.md").read_text()
    for words, _ in iter_commands():
        assert f"## `{' '.join(words)}`\n" in text


def test_every_problem_is_explained():
    assert find_problems().keys() == PROBLEMS.keys()


def test_every_code_of_the_sidecar_is_explained():
    made_of_statuses = {"INVALID_BODY", "INVALID_CONFIGURATION"}  # positional arguments
    assert find_sidecar_codes() | made_of_statuses == SIDECAR_CODES.keys()


def test_the_ways_to_take_a_value_from_elsewhere_are_explained():
    for form in ("${env.NAME}", "${env.NAME:default}", "${file:PATH}"):
        assert f"`{form}`" in CONFIGURATION
