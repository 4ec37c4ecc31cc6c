"""Random Avro schemas, recursive ones with defaults included, and JSON that mostly fits them."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import strategies as st

from .avro_model import PRIMITIVES, AvroModel, name_of

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-10, 10)
    | st.sampled_from([2**31, 2**63, 10**310, 1.0, 1e300, float("inf")])
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["", "NaN", "\ud800", "\u0100", "1e99999", "9" * 50, "2024-02-30", "12"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "b", "R0", "map", "int", "\ud800"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


def is_json(value: Any) -> bool:
    """Return whether a value can stand in the text of a schema."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


JSON_JUNK = JUNK.filter(is_json)
LOGICAL = [
    {"type": "int", "logicalType": "date"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
]
TEXTS = {
    "date": st.dates().map(str),
    "uuid": st.uuids().map(str),
    "decimal": st.decimals(-9999, 9999, places=2).map(str),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False) | st.sampled_from(["NaN", 1]),
    "double": st.floats(allow_nan=False) | st.sampled_from(["Infinity", 1]),
    "bytes": st.binary(max_size=3).map(lambda data: data.decode("latin-1")),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.just("NaN"),
}
MAX_DEPTH = 4


class SchemaBuilder:
    """Draws one schema, whose named types may refer to each other before they are complete."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.names: list[str] = []

    def new_name(self) -> str:
        self.names.append(f"R{len(self.names)}")
        return self.names[-1]

    def schema(self, depth: int = 0, *, in_union: bool = False) -> Any:
        kinds = ["primitive", "logical", "enum", "fixed"] if depth else ["record"]
        if depth < MAX_DEPTH:
            kinds += ["record", "array", "map"] + ["record", "union"] * (not in_union)
        kind = self.draw(st.sampled_from(kinds + ["name"] * 5 * bool(self.names)))
        if kind == "name":
            return self.draw(st.sampled_from(self.names))
        if kind == "primitive":
            return self.draw(st.sampled_from(PRIMITIVES))
        if kind == "logical":
            return dict(self.draw(st.sampled_from(LOGICAL)))
        if kind == "array":
            return {"type": "array", "items": self.schema(depth + 1)}
        if kind == "map":
            return {"type": "map", "values": self.schema(depth + 1)}
        if kind == "union":
            branches = [self.draw(st.sampled_from(["null", "int", "double", "string"]))]
            for _ in range(self.draw(st.integers(0, 2))):
                branch = self.schema(depth + 1, in_union=True)
                if name_of(branch) in map(name_of, branches):
                    # Kept inside of a record, since other parts may refer to a type in it.
                    fields = [{"name": "a", "type": branch}]
                    branch = {"type": "record", "name": self.new_name(), "fields": fields}
                branches.append(branch)
            return branches
        name = self.new_name()
        if kind == "enum":
            return {"type": "enum", "name": name, "symbols": ["a", "b", "NaN"]}
        if kind == "fixed":
            size = self.draw(st.sampled_from([0, 1, 2, 16]))
            logical = {"logicalType": "uuid"} if size == 16 and self.draw(st.booleans()) else {}
            return {"type": "fixed", "name": name, "size": size, **logical}
        count = self.draw(st.integers(1, 3))
        fields = [{"name": field, "type": self.schema(depth + 1)} for field in "abc"[:count]]
        return {"type": "record", "name": name, "fields": fields}


class JsonBuilder:
    """Draws JSON for one schema."""

    def __init__(self, draw: st.DrawFn, named: dict[str, Any], is_default: bool) -> None:
        self.draw = draw
        self.named = named
        self.is_default = is_default

    def chance(self, of: int) -> bool:
        return self.draw(st.integers(0, of - 1)) == of - 1

    def value(self, schema: Any, depth: int = 0) -> Any:
        if self.chance(30):
            return self.draw(JSON_JUNK if self.is_default else JUNK)
        if isinstance(schema, list):
            branch = self.draw(st.sampled_from(schema[:1] if depth > MAX_DEPTH else schema))
            value = self.value(branch, depth + 1)
            named = not self.is_default and branch != "null" and self.chance(3)
            return {name_of(branch): value} if named else value
        if isinstance(schema, str):
            if schema in VALUES:
                return self.draw(VALUES[schema])
            schema = self.named[schema]
        kind = schema["type"]
        if "logicalType" in schema and not self.is_default and not self.chance(5):
            return self.draw(TEXTS[schema["logicalType"]])
        if kind == "record":
            return {
                field["name"]: self.value(field["type"], depth + 1)
                for field in schema["fields"]
                if not ("default" in field and (depth > MAX_DEPTH or self.chance(2)))
                and not (depth > 2 * MAX_DEPTH or self.chance(40))
            }
        if kind in ("array", "map"):
            count = 0 if depth > MAX_DEPTH else self.draw(st.integers(0, 2))
            if kind == "array":
                return [self.value(schema["items"], depth + 1) for _ in range(count)]
            return {key: self.value(schema["values"], depth + 1) for key in ["a", "map"][:count]}
        if kind == "enum":
            return self.draw(st.sampled_from(schema["symbols"]))
        if kind == "fixed":
            return self.draw(st.text("\0\xff12", min_size=schema["size"], max_size=schema["size"]))
        return self.draw(VALUES[kind])


@st.composite
def schemas_with_values(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """Draw a schema, and JSON values of which most fit it."""
    schema = SchemaBuilder(draw).schema()
    named = AvroModel(schema).named
    defaults = JsonBuilder(draw, named, is_default=True)
    for record in named.values():
        for field in record.get("fields", ()):
            if not defaults.chance(3):
                # As the codec will read it from the text of the schema.
                field["default"] = orjson.loads(orjson.dumps(defaults.value(field["type"])))
    values = JsonBuilder(draw, named, is_default=False)
    return schema, [values.value(schema) for _ in range(3)]
