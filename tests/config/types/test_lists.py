"""What is reported of lists, and of a single item that stands for a list."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from gateway.config import build_json_schema, loads
from gateway.errors import ConfigError

KAFKA = "kafka: {servers: embedded}\n"


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("kafka: {servers: [a, 5, 'b:1', 'c:x']}", ["servers[0]", "servers[1]", "servers[3]"]),
        (
            f"{KAFKA}catalogs: {{r: {{type: schema-registry, url: [5, http://a, x]}}}}",
            ["url[0]", "url[2]"],
        ),
        (f"{KAFKA}listen: {{forwarded: [x, 10.0.0.1, 5]}}", ["forwarded[0]", "forwarded[2]"]),
    ],
    ids=["servers", "urls", "proxies"],
)
def test_every_wrong_item_of_a_list_is_reported(text: str, paths: list[str]):
    """Only the first wrong server, URL or proxy was reported."""
    with pytest.raises(ConfigError) as caught:
        loads(text)
    reported = [problem.split(": ")[1] for problem in caught.value.problems]
    assert [path.rpartition(".")[2] for path in reported] == paths


def test_the_problems_of_a_single_group_have_its_places():
    """They were reported as of a list, which the file does not have, at the key `groups`."""
    text = "sidecar:\n  reactive:\n    groups:\n      group: 5\n      topcs: [a]\n"
    with pytest.raises(ConfigError) as caught:
        loads(KAFKA + text, name="x")
    places = [problem.split(": ")[0] for problem in caught.value.problems]
    assert {"x:5:14", "x:6:7"} <= set(places)
    assert "sidecar.reactive.groups.group" in str(caught.value)
    assert "did you mean 'topics'?" in str(caught.value)


def test_the_schema_takes_a_single_group_as_the_loader_does():
    group: dict[str, Any] = {"group": "g", "topics": ["orders"]}
    validator = jsonschema.Draft202012Validator(build_json_schema())
    for groups in (group, [group]):
        raw = {"kafka": {"servers": "embedded"}, "sidecar": {"reactive": {"groups": groups}}}
        assert validator.is_valid(raw)


@pytest.mark.parametrize(("written", "shown"), [("true", "not true"), ("null", "is empty")])
def test_values_are_shown_as_the_file_writes_them(written: str, shown: str):
    """Messages had Python's True and None."""
    with pytest.raises(ConfigError, match=shown):
        loads(f"{KAFKA}catalogs: {{r: {{type: schema-registry, url: [{written}]}}}}")
