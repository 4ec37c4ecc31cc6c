"""Write the configuration reference: a page for each top-level option, from the JSON Schema.

Every kind of section has an example, cut from a configuration in `examples`, which the tests load,
unless guides have it. A section that stands in several places is described once. Headings are given
no ids, so that GitHub, too, finds their anchors.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from gateway.config import Settings, build_json_schema
from gateway.config.types.fields import DURATION_PATTERN, SIZE_PATTERN
from gateway.config.types.forms import expand

from .markdown import escape_markdown
from .schema import Node, Section, find_sections, is_substitution, iter_sections, iter_values

FOLDER = "reference/configuration"
EXAMPLES = Path(__file__).parent / "examples"

_PATTERN_NAMES = {DURATION_PATTERN: "duration", SIZE_PATTERN: "size", "^https?://": "URL"}
_FLOW_WIDTH = 60
_MAX_INLINED_OPTIONS = 3
_MIN_SHARED_OPTIONS = 2
_GUIDES = {
    "pipelines": "Examples: [queries, windows and sessions](../../pipeline-windows.md), "
    "[joins and tables](../../pipeline-joins.md).\n",
}
"""Where the examples of a page are, in place of its own."""

_INTRODUCTION = """\
# Configuration

A configuration is one YAML file. `gateway check FILE` reports everything that is wrong with it,
with line and column; with `--print` it prints the file with every default filled in.

```yaml title="gateway.yaml"
kafka:
  servers: ["localhost:9092"]
  topics:
    - name: orders
routes:
  - path: /events/orders
    topic: orders
```

Only `kafka.servers` must be set. An unknown option is an error.

"""

_VALUES = """
## Values

| Type | Written as |
|---|---|
| duration | `250ms`, `5s`, `10m`, `24h`, `7d` |
| size | `512kB`, `64MiB`, `1GiB` |
| rate | `20/s`, `100/m`, `1000/h` |
| text | YAML text; quote what YAML reads as something else, such as `"on"` or `"1.10"` |

## Environment variables and files

Any value can come from the environment or from a file, which is read when the configuration is
loaded or reloaded; a relative path starts at the folder of the configuration.

| In the file | Becomes |
|---|---|
| `${env.NAME}` | The variable `NAME`. If it is not set, the configuration is refused |
| `${env.NAME:default}` | The variable `NAME`, or `default` if it is not set |
| `${file:PATH}` | The content of a file, without the newline at its end |

```yaml
listen:
  port: ${env.GATEWAY_PORT:8080}
kafka:
  servers: ["${env.KAFKA:localhost:9092}"]
  security:
    sasl:
      mechanism: plain
      username: gateway
      password: ${env.KAFKA_PASSWORD}
```

`${params.NAME}` and `${message.…}` are filled in for each request and each record, in options that
say so.

## Completion in an editor

Editors with the YAML language server take the schema from the first line of the file:

<!-- check: yaml -->
```yaml
# yaml-language-server: $schema=gateway.schema.json
```

```sh
gateway check --schema > gateway.schema.json
```
"""


class _Option(NamedTuple):
    path: str
    name: str
    node: Node
    is_required: bool


class _Example(NamedTuple):
    """A value of an example: the path to it in the file, and the file."""

    keys: tuple[str | int, ...]
    config: Any

    def covers(self, other: _Example) -> bool:
        """Return whether another value is a part of this one."""
        return other.keys[: len(self.keys)] == self.keys


def build_configuration_pages() -> dict[str, str]:
    """Return the pages of the configuration reference, by their path below docs/."""
    schema = build_json_schema()
    writer = _Writer(schema)
    pages = {f"{FOLDER}/index.md": writer.build_index()}
    for name in schema["properties"]:
        if any(section.page == name for section in writer.sections):
            pages[f"{FOLDER}/{name}.md"] = writer.build_page(name)
    return pages


def load_examples() -> dict[str, Any]:
    """Return the configurations that examples are cut from, by the name of their file."""
    yaml = YAML()
    return {path.stem: yaml.load(path.read_text()) for path in sorted(EXAMPLES.glob("*.yaml"))}


def iter_examples(schema: Node) -> Iterator[tuple[str, Section, _Example]]:
    """Yield each section of the examples, with the name of the example's file."""
    for name, config in load_examples().items():
        expansion = expand(Settings, config)  # the schema has the sections of the long form
        for section, keys, _ in iter_values(schema, expansion.values):
            yield name, section, _Example(_find_written(tuple(keys), expansion.moves), config)


class _Writer:
    """Writes the pages of one schema."""

    def __init__(self, schema: Node) -> None:
        self._schema = schema
        self.sections = list(iter_sections(schema))
        self._by_title = {section.title: section for section in self.sections}
        self._uses = Counter(
            used.title
            for section in (Section("", "", schema), *self.sections)
            for option in section.node.get("properties", {}).values()
            for used in find_sections(schema, "", option)
        )
        self._values = list(iter_examples(schema))
        self._examples = self._choose_examples()

    def build_index(self) -> str:
        """Return the page that lists the top-level options, and explains values."""
        pages = {section.page for section in self.sections}
        lines = [
            f"- [`{option.name}`]({option.name}.md): {_get_description(option.node)}\n"
            if option.name in pages
            else self._build_option(option, "index", "")
            for option in _iter_options("", self._schema)
        ]
        return "".join([_INTRODUCTION, *lines, _VALUES])

    def build_page(self, name: str) -> str:
        """Return the page of one top-level option."""
        sections = [section for section in self.sections if section.page == name]
        parts = [f"# {name}\n"]
        if sections[0].path != name:
            parts.append(f"{_get_description(self._schema['properties'][name])}\n")
        written: set[str] = set()
        for section in sections:
            kinds = [each for each in sections if each.path == section.path]
            common = _find_common_options(kinds)
            if common and section.path not in written:
                option = section.kind.partition(":")[0]
                parts.append(f"## `{section.path}`\n\nOptions of every `{option}`.\n")
                parts.append(self._build_list(section, common))
                written.add(section.path)
            if not self._is_inlined(section):
                parts.append(self._build_section(section, common))
        return "\n".join(part for part in parts if part)

    def _build_section(self, section: Section, common: Collection[str]) -> str:
        parts = [f"{_get_description(section.node)}\n"]
        if section.path != section.page:
            parts.insert(0, f"## {section.heading}\n")
        elif section.page in _GUIDES:
            parts.append(_GUIDES[section.page])
        if section.title in self._examples:
            parts.append(f"```yaml\n{self._cut(self._examples[section.title])}```\n")
        names = section.node.get("properties", {}).keys() - {
            section.kind.partition(":")[0],
            *common,
        }
        other, shared = self._find_shared_options(section)
        lines = self._build_list(section, names - set(shared))
        if other:
            listed = ", ".join(f"`{name}`" for name in shared)
            lines = f"- As of [`{other.path}`](#{other.anchor}): {listed}.\n{lines}"
        parts.append(lines)
        return "\n".join(part for part in parts if part)

    def _find_shared_options(self, section: Section) -> tuple[Section | None, list[str]]:
        """Return the section above on the page that has most options of this one, and which."""
        own = section.node.get("properties", {})
        other: Section | None = None
        shared: list[str] = []
        for each in self.sections[: self.sections.index(section)]:
            options = each.node.get("properties", {})
            names = [name for name, node in own.items() if options.get(name) == node]
            is_beside = each.page == section.page and each.path != section.path
            if is_beside and not self._is_inlined(each) and len(names) > len(shared):
                other, shared = each, names
        return (other, shared) if len(shared) >= min(_MIN_SHARED_OPTIONS, len(own)) else (None, [])

    def _build_list(self, section: Section, names: Collection[str], indent: str = "") -> str:
        return "".join(
            self._build_option(option, section.page, indent)
            for option in _iter_options(section.path, section.node)
            if option.name in names
        )

    def _build_option(self, option: _Option, page: str, indent: str) -> str:
        name, facts = f"`{option.name}`", self._describe_facts(option, page)
        sections = list(find_sections(self._schema, option.path, option.node))
        below = ""
        if len(sections) == 1 and sections[0].path == option.path and not sections[0].kind:
            facts = "required" if option.is_required else ""
            section = self._by_title[sections[0].title]
            if self._is_inlined(section):
                below = self._build_list(section, section.node["properties"], f"{indent}    ")
            else:
                name = f"[{name}]({self._find_target(section, page)})"
        facts = f" ({facts})" if facts else ""
        return f"{indent}- {name}{facts}: {_get_description(option.node)}\n{below}"

    def _is_inlined(self, section: Section) -> bool:
        """Return whether a section is listed below its option, and has no heading itself."""
        is_named = section.path.endswith(("[]", ".NAME")) or section.path == section.page
        size = len(section.node.get("properties", {}))
        is_small = self._uses[section.title] == 1 and size <= _MAX_INLINED_OPTIONS
        return is_small and not is_named and not section.kind

    def _choose_examples(self) -> dict[str, _Example]:
        """Return the examples by section: of each kind, and else of whole pages; no part twice."""
        found: dict[str, _Example] = {}
        for name, section, example in self._values:
            if self._by_title[section.title].page == name and name not in _GUIDES:
                found.setdefault(section.title, example)
        kinds = {t: e for t, e in found.items() if self._by_title[t].kind}
        chosen: dict[str, _Example] = {}
        for title, example in sorted(kinds.items(), key=lambda item: len(item[1].keys)):
            if not any(each.covers(example) for each in chosen.values()):
                chosen[title] = example
        for title, example in found.items():
            if not any(e.covers(example) or example.covers(e) for e in chosen.values()):
                chosen[title] = example
        return chosen

    def _describe_facts(self, option: _Option, page: str) -> str:
        """Return the type and the default of an option; of a plain type the default says enough."""
        types, default = self._describe_type(option.node, page), option.node.get("default")
        if option.is_required:
            return f"{types}; required" if "`" in types else f"{types}, required"
        if default in (None, "", []) or isinstance(default, Mapping):
            return types
        shown = f"`{default if isinstance(default, str) else json.dumps(default)}`"
        choices = types.split(", ")
        if shown in choices:
            return ", ".join([f"default {shown}", *(each for each in choices if each != shown)])
        is_plain = not any(word in types for word in ("`", " or ", " from "))
        return f"default {shown}" if is_plain else f"{types}; default {shown}"

    def _describe_type(self, node: Node, page: str) -> str:
        """Return the types of an option, as Markdown with links to sections."""
        if "anyOf" in node or "oneOf" in node or "else" in node:
            alternatives = [*node.get("anyOf", ()), *node.get("oneOf", ())]
            alternatives += [node[name] for name in ("then", "else") if name in node]
            names = [
                self._describe_type(each, page)
                for each in alternatives
                if not is_substitution(each) and each.get("type") != "null"
            ]
            return " or ".join(dict.fromkeys(names))
        if "allOf" in node:
            return " or ".join(self._describe_type(each["then"], page) for each in node["allOf"])
        if "$ref" in node:
            return self._link(node["$ref"].rpartition("/")[2], page)
        if "const" in node:
            return f"`{node['const']}`"
        if "enum" in node:
            # A format may also be written as a number, which its guide says.
            return ", ".join(f"`{value}`" for value in node["enum"] if isinstance(value, str))
        return self._describe_plain_type(node, page)

    def _describe_plain_type(self, node: Node, page: str) -> str:
        if node.get("pattern") in _PATTERN_NAMES:
            return _PATTERN_NAMES[node["pattern"]]
        match node.get("type"):
            case "array":
                items = node.get("items") or {}
                return f"list of {self._describe_type(items, page)}" if items else "list"
            case "object":
                values = node.get("additionalProperties")
                values = next(iter(node.get("patternProperties", {}).values()), values)
                if isinstance(values, Mapping):
                    return f"mapping to {self._describe_type(values, page)}"
                return "mapping"
            case "string":
                return "text"
            case "boolean":
                return "boolean"
            case "integer" | "number" as name:
                return f"{name}{_describe_range(node)}"
        return "any value"

    def _link(self, title: str, page: str) -> str:
        section = self._by_title[title]
        name = section.path.removesuffix("[]").removesuffix(".NAME").rpartition(".")[2]
        kind = section.kind.partition(": ")[2]
        return f"[{kind or name}]({self._find_target(section, page)})"

    def _find_target(self, section: Section, page: str) -> str:
        anchor = "" if section.path == section.page else f"#{section.anchor}"
        return anchor if anchor and section.page == page else f"{section.page}.md{anchor}"

    def _cut(self, example: _Example) -> str:
        """Return the YAML of an example, below the options that it stands in.

        Beside it stand those that its surroundings must have, such as the name of a topic.
        """
        stands = {
            other.keys: section
            for _, section, other in self._values
            if other.config is example.config
        }
        part: Any = _flow(_find(example.config, example.keys))
        for depth in range(len(example.keys) - 1, -1, -1):
            key, above = example.keys[depth], example.keys[:depth]
            if isinstance(key, int):
                part = CommentedSeq([part])
                continue
            parent = _find(example.config, above)
            wanted = stands[above].node.get("required", ()) if above in stands else ()
            kind = stands[above].kind.partition(": ")[0] if above in stands else ""
            names = [name for name in parent if name in (key, kind) or name in wanted]
            part = CommentedMap({n: part if n == key else _flow(parent[n]) for n in names})
        return _dump(part)


def _iter_options(path: str, node: Node) -> Iterator[_Option]:
    required = node.get("required", ())
    for name, option in node.get("properties", {}).items():
        whole = f"{path}.{name}" if path else name
        yield _Option(whole, name, option, name in required)


def _get_description(node: Node) -> str:
    return escape_markdown(str(node.get("description", "")))


def _describe_range(node: Node) -> str:
    least, most = node.get("minimum"), node.get("maximum")
    return "" if least is None or most is None else f" from {least} to {most}"


def _find_common_options(kinds: Sequence[Section]) -> list[str]:
    """Return the options that all kinds of a section have alike."""
    if len(kinds) == 1:
        return []
    first, *others = (kind.node.get("properties", {}) for kind in kinds)
    return [n for n, node in first.items() if all(other.get(n) == node for other in others)]


def _find_written(
    keys: tuple[str | int, ...], moves: Mapping[tuple[str | int, ...], tuple[str | int, ...]]
) -> tuple[str | int, ...]:
    """Return where the file has the value of a path of the long form."""
    for count in range(len(keys), 0, -1):
        if keys[:count] in moves:
            return (*moves[keys[:count]], *keys[count:])
    return keys


def _find(config: Any, keys: Iterable[str | int]) -> Any:
    for key in keys:
        config = config[key]
    return config


def _flow(value: Any) -> Any:
    """Return a value without comments, in one line where it is short."""
    if isinstance(value, Mapping):
        made: Any = CommentedMap({name: _flow(each) for name, each in value.items()})
    elif isinstance(value, list):
        made = CommentedSeq([_flow(each) for each in value])
    else:
        return value
    if len(json.dumps(_to_plain(made))) <= _FLOW_WIDTH:
        made.fa.set_flow_style()
    return made


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_plain(each) for name, each in value.items()}
    return [_to_plain(each) for each in value] if isinstance(value, list) else str(value)


def _dump(value: Any) -> str:
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 100
    stream = io.StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()
