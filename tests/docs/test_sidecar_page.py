"""What the pages of the sidecar name is there: options, endpoints, metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML
from support.doc_blocks import DOCS

from gateway.config import Settings, dumps, loads
from gateway.config.sections.sidecar import Group
from gateway.config.sections.sidecar import Sidecar as Section
from gateway.config.source import values_file
from gateway.sidecar.http.spec import METHODS, SPEC_DIRECTORY, Spec
from gateway.telemetry.catalog import METRICS

TEXT = "\n".join(page.read_text() for page in sorted(DOCS.glob("sidecar*.md")))
PAGE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)
V2_PAGE = (DOCS / "migrate-rest-proxies.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", PAGE)
EVERY = Spec(sorted({path.stem for path in SPEC_DIRECTORY.glob("*.yaml")} - {"base"}))
KEY = re.compile(r"[a-z]\w*(\.[a-z]\w*)+")
SECTIONS = frozenset(
    {
        *("sidecar", "producer", "consumer", "reactive", "ksqldb", "admin", "audit", "deadLetter"),
        *("replay", "health", "kafka", "listen", "telemetry", "idempotency", "batch", "backend"),
    }
)


def iter_rows() -> Iterator[tuple[list[str], list[str]]]:
    """Each row, with the head of its table."""
    head: list[str] = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            head = []
        elif not head:
            head = cells
        elif not set(line) <= set("|- "):
            yield head, cells


def is_option(model: Any, way: list[str]) -> bool:
    """Is it one of a section, through lists and optional sections?"""
    for step in way:
        fields = {item.alias or name: item for name, item in model.model_fields.items()}
        fields |= {_to_camel_case(name): item for name, item in model.model_fields.items()}
        if step not in fields:
            return False
        model = next(iter(_iter_models(fields[step].annotation)), BaseModel)
    return True


def _to_camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(item.title() for item in rest)


def _iter_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _iter_models(inner)


def is_key(text: str) -> bool:
    way = text.split(".")
    inner = [Section, Settings, *_iter_models(Section.model_fields["producer"].annotation)]
    inner += _iter_models(Section.model_fields["ksqldb"].annotation)
    inner += [Group, *_iter_query_models()]
    return any(is_option(model, way) for model in inner)


def _iter_query_models() -> Iterator[type[BaseModel]]:
    for model in _iter_models(Section.model_fields["ksqldb"].annotation):
        yield from _iter_models(model.model_fields["queries"].annotation)


def is_section_key(text: str) -> bool:
    """As a key, not as a module."""
    return text.split(".")[0] in SECTIONS and not text.endswith((".py", ".yaml"))


def test_every_key_of_the_page_is_an_option():
    keys = {entry for entry in CODE if KEY.fullmatch(entry) and is_section_key(entry)}
    assert not [key for key in keys if not is_key(key)]


SERVED = """
kafka: {servers: [a:9092]}
sidecar:
  reactive: {groups: {group: shop, topics: [orders]}}
  ksqldb: {queries: [{name: paid, query: SELECT}]}
  producer: {}
  consumer: {}
  admin: {}
  audit: {}
  deadLetter: {}
  replay: {}
"""


def iter_defaults(value: Any, way: str = "") -> Iterator[tuple[str, str]]:
    """Each option's, as it is written in a file."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from iter_defaults(item, f"{way}.{name}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from iter_defaults(value[0], way)
    else:
        yield way, str(value).lower() if isinstance(value, bool) else str(value)


def test_the_defaults_in_parentheses_are_those_of_the_options():
    """Such as `maxRetries` (3)."""
    known = list(iter_defaults(YAML(typ="safe").load(dumps(loads(SERVED)))["sidecar"], "sidecar"))
    compared = 0
    for key, default in re.findall(r"`(\w+(?:\.\w+)*)`\s+\(`?([\w.%-]+)`?\)", PAGE):
        found = {value for name, value in known if f".{name}".endswith(f".{key}")}
        if default != "default":
            assert not found or default in found, f"{key}: {found}"
            compared += bool(found)
    assert compared > 15


def test_every_key_of_a_values_file_is_in_its_table():
    mentioned: set[str] = set()
    for head, cells in iter_rows():
        if head == ["Key", "Option"]:
            first = ""
            for key in re.findall(r"`([^`]+)`", cells[0]):
                first = key.partition(".")[0] if not key.startswith(".") else first
                mentioned.add(first + key if key.startswith(".") else key)
    assert mentioned == set(values_file.VALUE_KEYS)


def test_the_pages_have_every_endpoint():
    for path, item in EVERY.document["paths"].items():
        for method in METHODS:
            if method in item:
                assert is_named(path), f"{method} {path}"


def is_named(path: str) -> bool:
    """Whole, or as the last step of one that is."""
    text = PAGE + V2_PAGE
    parent, _, last = path.rpartition("/")
    if re.search(rf"{re.escape(path)}(?![\w/])", text):
        return True
    return f"`/{last}`" in text and re.search(rf"{re.escape(parent)}(?!\w)", text) is not None


def test_every_metric_of_the_page_exists():
    known = {metric.exposed_name for metric in METRICS}
    mentioned = set(re.findall(r"\bgateway_\w+", PAGE))
    assert mentioned and mentioned <= known
