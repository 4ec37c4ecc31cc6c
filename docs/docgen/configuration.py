"""Write the configuration reference: a page for each top-level option, from the JSON Schema.

Every section has an example, cut from a configuration in `examples`, which the tests load.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from gateway.config import build_json_schema
from gateway.config.types.fields import DURATION_PATTERN, SIZE_PATTERN

from .markdown import escape_markdown
from .schema import Node, Section, build_anchor, is_substitution, iter_sections, iter_values

FOLDER = "reference/configuration"
EXAMPLES = Path(__file__).parent / "examples"

_PATTERN_NAMES = {DURATION_PATTERN: "duration", SIZE_PATTERN: "size", "^https?://": "URL"}
_FLOW_WIDTH = 60

_INTRODUCTION = """\
# Configuration

A configuration is one YAML file. `gateway check FILE` reports everything that is wrong with it,
with line and column; `gateway check FILE --print` prints it with every default filled in.

```yaml title="gateway.yaml"
kafka:
  servers: ["localhost:9092"]
  topics:
    - name: orders
routes:
  - when: [{path: /events/orders}]
    with: {topic: orders}
```

`kafka.servers` is the only option that must be set. An unknown option is an error.

## Sections

| Option | What it configures |
|---|---|
"""

_VALUES = """
## Values

| Type | Written as |
|---|---|
| duration | A number and a unit: `250ms`, `5s`, `10m`, `24h`, `7d` |
| size | A number and a unit: `512kB`, `64MiB`, `1GiB` |
| rate | A number and a unit of time: `20/s`, `100/m`, `1000/h` |
| text | YAML text; quote what YAML reads as something else, such as `"on"` or `"1.10"` |

## Environment variables and files

Any value can come from the environment or from a file. The file is read once, when the
configuration is loaded or reloaded; a relative path starts at the folder of the configuration.

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

`${params.NAME}` and `${message.…}` are filled in later, for each request and each record. The
options that take them say so.

## Completion in an editor

`gateway check --schema` prints the JSON Schema of the configuration. Editors with the YAML language
server read it from the first line of the file:

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


class _Writer:
    """Writes the pages of one schema."""

    def __init__(self, schema: Node) -> None:
        self._schema = schema
        self.sections = list(iter_sections(schema))
        self._by_title = {section.title: section for section in self.sections}
        self._examples: dict[str, str] = {}
        for name, config in load_examples().items():
            for section, keys, value in iter_values(schema, config):
                if self._by_title[section.title].page == name:
                    self._examples.setdefault(section.title, _cut(schema, config, keys, value))

    def build_index(self) -> str:
        """Return the page that lists the top-level options, and explains values."""
        parts = [_INTRODUCTION]
        pages = {section.page for section in self.sections}
        alone = []
        for option in _iter_options("", self._schema):
            target = f"{option.name}.md" if option.name in pages else f"#{option.name}"
            parts.append(f"| [`{option.name}`]({target}) | {_get_description(option.node)} |\n")
            if option.name not in pages:
                alone.append(self._build_option(option, "index", level=2))
        return "".join([*parts, _VALUES, "\n", "\n".join(alone)])

    def build_page(self, name: str) -> str:
        """Return the page of one top-level option."""
        option = self._schema["properties"][name]
        parts = [f"# {name}\n\n{_get_description(option)}\n"]
        parts += [self._build_section(s) for s in self.sections if s.page == name]
        return "\n".join(parts)

    def _build_section(self, section: Section) -> str:
        kind = f" of {section.kind.replace(': ', ' `')}`" if section.kind else ""
        is_whole = section.path == section.page
        title = "Options" if is_whole else f"`{section.path}`{kind}"
        parts = [f"## {title} {{ #{section.anchor} }}\n"]
        if not is_whole:
            parts.append(f"{_get_description(section.node)}\n")
        if section.title in self._examples:
            parts.append(f"```yaml\n{self._examples[section.title]}```\n")
        for option in _iter_options(section.path, section.node):
            above = build_anchor(section.path) if not section.kind else section.anchor
            anchor = f"{above}-{option.name.lower()}"
            parts.append(self._build_option(option, section.page, anchor=anchor))
        return "\n".join(parts)

    def _build_option(self, option: _Option, page: str, *, level: int = 3, anchor: str = "") -> str:
        types = self._describe_type(option.node, page)
        facts = [types, _describe_default(option)]
        return (
            f"{'#' * level} `{option.path}` {{ #{anchor or build_anchor(option.path)} }}\n\n"
            f"{' · '.join(fact for fact in facts if fact)}\n\n"
            f"{_get_description(option.node)}\n"
        )

    def _describe_type(self, node: Node, page: str) -> str:
        """Return the types of an option, as Markdown with links to sections."""
        if "else" in node:
            section = self._describe_type(node["else"], page)
            return f"{section}, or a mapping of names to these"
        if "anyOf" in node or "oneOf" in node:
            alternatives = [*node.get("anyOf", ()), *node.get("oneOf", ())]
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
            return ", ".join(f"`{value}`" for value in node["enum"])
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
                    return f"mapping of names to {self._describe_type(values, page)}"
                return "mapping"
            case "string":
                return "text"
            case "boolean":
                return "`true` or `false`"
            case "integer" | "number" as name:
                return f"{name}{_describe_range(node)}"
        return "any value"

    def _link(self, title: str, page: str) -> str:
        section = self._by_title[title]
        target = "" if section.page == page else f"{section.page}.md"
        kind = f" ({section.kind.partition(': ')[2]})" if section.kind else ""
        name = section.path.removesuffix("[]").removesuffix(".NAME").rpartition(".")[2]
        return f"[{name}{kind}]({target}#{section.anchor})"


def _iter_options(path: str, node: Node) -> Iterator[_Option]:
    required = node.get("required", ())
    for name, option in node.get("properties", {}).items():
        whole = f"{path}.{name}" if path else name
        yield _Option(whole, name, option, name in required)


def _get_description(node: Node) -> str:
    return escape_markdown(str(node.get("description", "")))


def _describe_range(node: Node) -> str:
    least, most = node.get("minimum"), node.get("maximum")
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if least is not None:
        return f" of at least {least}"
    return "" if most is None else f" of at most {most}"


def _describe_default(option: _Option) -> str:
    if option.is_required:
        return "**required**"
    default = option.node.get("default")
    if default in (None, "", []) or isinstance(default, Mapping):
        return ""
    return f"default `{json.dumps(default) if not isinstance(default, str) else default}`"


def _cut(schema: Node, config: Any, keys: list[str | int], value: Any) -> str:
    """Return the YAML of one value of a configuration, below the options that it stands in.

    Beside it stand those that its surroundings must have, such as the name of a topic.
    """
    stands = {tuple(path): section for section, path, _ in iter_values(schema, config)}
    part: Any = _flow(value)
    for depth in range(len(keys) - 1, -1, -1):
        key, above = keys[depth], tuple(keys[:depth])
        if isinstance(key, int):
            part = CommentedSeq([part])
            continue
        parent = _find(config, keys[:depth])
        wanted = stands[above].node.get("required", ()) if above in stands else ()
        kind = stands[above].kind.partition(": ")[0] if above in stands else ""
        names = [name for name in parent if name in (key, kind) or name in wanted]
        part = CommentedMap({n: part if n == key else _flow(parent[n]) for n in names})
    return _dump(part)


def _find(config: Any, keys: list[str | int]) -> Any:
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
