"""Walk the JSON Schema of the configuration: its sections, and where each of them stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Node = Mapping[str, Any]

SUBSTITUTION_PATTERN = r"\$\{(env\.|file:)"


class Section(NamedTuple):
    """A mapping of the configuration that has options of its own.

    Attributes:
        path: Where it stands first, such as `kafka.topics[].cache`.
        title: The name of its definition.
        node: Its schema.
        kind: The option that selects it among others and its value, such as `type: jwt`; or empty.
    """

    path: str
    title: str
    node: Node
    kind: str = ""

    @property
    def page(self) -> str:
        """The top-level option that it is below."""
        return self.path.partition(".")[0].removesuffix("[]")

    @property
    def heading(self) -> str:
        """The text of its heading, as Markdown."""
        return f"`{self.path}`{f' of `{self.kind}`' if self.kind else ''}"

    @property
    def anchor(self) -> str:
        """The id that Markdown gives its heading."""
        return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", self.heading).lower())


def iter_sections(schema: Node) -> Iterator[Section]:
    """Yield every definition of a schema once, where it occurs first, depth first."""
    seen: set[str] = set()
    for name, option in schema["properties"].items():
        yield from _iter_below(schema, name, option, seen)


def _iter_below(schema: Node, path: str, option: Node, seen: set[str]) -> Iterator[Section]:
    for section in find_sections(schema, path, option):
        if section.title in seen:
            continue
        seen.add(section.title)
        yield section
        for name, below in section.node.get("properties", {}).items():
            yield from _iter_below(schema, f"{section.path}.{name}", below, seen)


def find_sections(schema: Node, path: str, node: Node, kind: str = "") -> Iterator[Section]:
    """Yield the sections that the value of one option can be, or be made of."""
    if "$ref" in node:
        title = node["$ref"].rpartition("/")[2]
        definition = schema["$defs"][title]
        kind = kind or _find_kind(definition)
        yield Section(path, title, definition, kind)
    for each in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from find_sections(schema, path, each)
    for each in node.get("allOf", ()):
        ((name, value),) = each["if"]["properties"].items()
        yield from find_sections(schema, path, each["then"], f"{name}: {value['const']}")
    if "else" in node:  # `kafka`: one cluster, or clusters by name
        yield from find_sections(schema, path, node["else"])
    if isinstance(node.get("items"), Mapping):
        yield from find_sections(schema, f"{path}[]", node["items"])
    for each in (node.get("additionalProperties"), *node.get("patternProperties", {}).values()):
        if isinstance(each, Mapping):
            yield from find_sections(schema, f"{path}.NAME", each)


def _find_kind(definition: Node) -> str:
    """Return the option that a value must have to be of this definition, with its value."""
    for name in ("type", "kind"):
        option = definition.get("properties", {}).get(name, {})
        for each in (option, *option.get("anyOf", ())):
            if "const" in each:
                return f"{name}: {each['const']}"
    return ""


def is_substitution(node: Node) -> bool:
    """Return whether this is what allows `${env.NAME}` as the value of an option."""
    return node.get("pattern") == SUBSTITUTION_PATTERN


def iter_values(schema: Node, config: Node) -> Iterator[tuple[Section, list[str | int], Any]]:
    """Yield each section of a configuration with the path to its value, and the value."""
    for name, value in config.items():
        yield from _iter_values(schema, name, schema["properties"][name], [name], value)


def _iter_values(
    schema: Node, path: str, node: Node, keys: list[str | int], value: Any
) -> Iterator[tuple[Section, list[str | int], Any]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iter_values(schema, path, node, [*keys, index], item)
        return
    if not isinstance(value, dict):
        return
    matching = [s for s in find_sections(schema, path, node) if _fits(s, value)]
    if matching:
        yield matching[0], keys, value
        for name, below in matching[0].node.get("properties", {}).items():
            if name in value:
                yield from _iter_values(
                    schema, f"{matching[0].path}.{name}", below, [*keys, name], value[name]
                )
    else:  # names that are free to choose, such as those of guards
        for name, item in value.items():
            yield from _iter_values(schema, path, node, [*keys, name], item)


def _fits(section: Section, value: Mapping[str, Any]) -> bool:
    name, _, wanted = section.kind.partition(": ")
    default = section.node.get("properties", {}).get(name, {}).get("default")
    if name and value.get(name, default) != wanted:
        return False
    return set(value) <= set(section.node.get("properties", {})) or (
        isinstance(section.node.get("additionalProperties"), Mapping)
    )
