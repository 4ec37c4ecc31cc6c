"""What is served extends the contract; requests are held against what is served."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML
from starlette.requests import Request

from gateway.sidecar.consumer.dialect import CONFLUENT
from gateway.sidecar.http.body_fields import READ_RECORD_FIELDS
from gateway.sidecar.http.docs import render_page
from gateway.sidecar.http.spec import METHODS, SPEC_DIRECTORY, Spec
from gateway.sidecar.http.status import StatusError, build_status

CONTRACT: Any = YAML(typ="safe", pure=True).load(
    (Path(__file__).parents[1] / "contract.yaml").read_text("utf-8")
)
OPERATIONS = [
    (path, method, item[method])
    for path, item in CONTRACT["paths"].items()
    for method in METHODS
    if method in item
]
EVERY = Spec(sorted({path.stem for path in SPEC_DIRECTORY.glob("*.yaml")} - {"base"}))
SERVED = EVERY.document


def resolve_schema(schema: Any, document: Any = SERVED) -> Any:
    while "$ref" in schema:
        found = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        schema = found
    return schema


def test_the_contract_has_its_operations_and_schemas():
    assert len(OPERATIONS) == 14
    assert len(CONTRACT["components"]["schemas"]) == 18


@pytest.mark.parametrize(
    ("path", "method", "asked"), OPERATIONS, ids=lambda part: part if isinstance(part, str) else ""
)
def test_each_operation_of_the_contract_is_there_with_its_parameters_and_answers(
    path, method, asked
):
    item = SERVED["paths"][path]
    ours = item[method]
    assert ours["operationId"] == asked["operationId"]
    shared = [*item.get("parameters", ()), *ours.get("parameters", ())]
    parameters = {(entry["name"], entry["in"]): entry for entry in map(resolve_schema, shared)}
    known = {(parameter["name"], parameter["in"]) for parameter in asked.get("parameters", ())}
    assert known <= parameters.keys()
    needed = {place for place, entry in parameters.items() if entry.get("required")}
    assert needed <= {
        (parameter["name"], parameter["in"])
        for parameter in asked.get("parameters", ())
        if parameter.get("required")
    }
    assert asked.get("responses", {}).keys() <= ours["responses"].keys()
    assert asked["security"][0]["kafka_auth"] == ours["security"][0]["kafka_auth"]
    if "requestBody" in asked:
        schema = asked["requestBody"]["content"]["application/json"]["schema"]
        body = resolve_schema(ours["requestBody"])
        assert body["content"]["application/json"]["schema"]["$ref"] == schema["$ref"]


@pytest.mark.parametrize(
    ("path", "method", "asked"), OPERATIONS, ids=lambda part: part if isinstance(part, str) else ""
)
def test_what_the_contract_answers_and_asks_for_is_still_that(path: str, method: str, asked: Any):
    """Answers have its schemas, among others; parameters take what it lets them be; and each
    operation has the statuses that it lacks."""
    item = SERVED["paths"][path]
    ours = item[method]
    assert {"401", "403", "409", "413", "422", "503"} <= ours["responses"].keys()
    for status, response in asked["responses"].items():
        for kind, content in response.get("content", {}).items():
            found = resolve_schema(ours["responses"][status])["content"][kind]["schema"]
            assert has_schema(found, content["schema"]), f"{method} {path} {status}"
    shared = [*item.get("parameters", ()), *ours.get("parameters", ())]
    parameters = {schema["name"]: schema["schema"] for schema in map(resolve_schema, shared)}
    for parameter in asked.get("parameters", ()):
        validator = jsonschema.Draft202012Validator(
            {**parameters[parameter["name"]], "components": SERVED["components"]}
        )
        kind = parameter["schema"].get("type")
        for value in parameter["schema"].get("enum", [{"string": "orders", "integer": 1000}[kind]]):
            assert validator.is_valid(value), (parameter["name"], value)


def has_schema(ours: Any, contract_schema: Any) -> bool:
    """Is it the contract's, or one of several of which it is one?"""
    if "$ref" in contract_schema and ours.get("$ref") != contract_schema["$ref"]:
        inner = [*ours.get("anyOf", ()), *ours.get("allOf", ())]
        inner += [resolve_schema(ours)] if "$ref" in ours else []
        return any(has_schema(item, contract_schema) for item in inner)
    if "items" in contract_schema:
        arrays = [ours, *ours.get("anyOf", ())]
        return any(
            "items" in array and has_schema(array["items"], contract_schema["items"])
            for array in arrays
        )
    return True


def test_keys_and_values_are_any_json():
    for name in ("ConsumerRecord", "ProduceRecord"):
        validator = jsonschema.Draft202012Validator(SERVED["components"]["schemas"][name])
        for value in (None, 1, 0.5, "a", True, [1], {"a": {}}):
            assert validator.is_valid({"key": value, "value": value}), value


def test_what_the_seed_has_besides_its_contract_is_served_as_well():
    added = {
        "/consumers/deadLetter/reactive": {"get"},
        "/consumers/deadLetter/active": {"get", "post"},
        "/consumers/active/audit": {"post"},
        "/ksqldb/active": {"post"},
        "/replays": {"get", "post"},
        "/health/liveness": {"get"},
        "/health/readiness": {"get"},
        "/adm/server/info": {"get"},
        "/adm/logger": {"get", "post"},
        "/adm/chaosmonkey/{assault}": {"get", "post"},
        "/adm/shutdown": {"delete"},
        "/adm/groups/{group}/lag": {"get"},
        "/adm/groups/{group}/offsets": {"post"},
    }
    for path, methods in added.items():
        assert methods <= SERVED["paths"][path].keys(), path


@pytest.mark.parametrize("name", CONTRACT["components"]["schemas"])
def test_each_schema_of_the_contract_is_there_with_its_fields(name: str):
    asked = CONTRACT["components"]["schemas"][name]
    ours = resolve_schema(SERVED["components"]["schemas"][name])
    assert asked["properties"].keys() <= ours["properties"].keys()
    assert set(asked.get("required", ())) <= set(ours.get("required", ()))


def test_every_schema_is_one():
    for schema in SERVED["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def parse_body(operation: str, text: bytes, kind: str | None = "application/json") -> Any:
    return EVERY[operation].parse_body(text, kind)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", 'the body: "records" is a required property'),
        (b"", "the body: is empty"),
        (b"[1]", 'the body: [1] is not of type "object"'),
        (b'{"records": {}}', 'records: {} is not of type "array"'),
        (b'{"records": [7]}', 'records[0]: 7 is not of type "object"'),
        (b'{"records": [{}, {"partition": -1}]}', "records[1].partition: -1 is less than"),
        (b'{"records": [], "keyFormat": "jsn"}', "keyFormat: "),
        (
            b'{"records": [], "recrods": []}',
            "recrods: there is no such field; did you mean 'records'",
        ),
        (b'{"records": [], "recrods": null}', None),
        (b'{"recrods": []}', "recrods: there is no such field; did you mean 'records'?"),
        (b'{"data": []}', "data: there is no such field; did you mean 'records'?"),
        (
            b'{"records": [], "keyFromat": "json"}',
            "keyFromat: there is no such field; did you mean",
        ),
        (b'{"records": [{}, {"val": 1}]}', "records[1].val: there is no such field; did you mean"),
        (b'{"records": [{"value": 1, "topic": "t", "offset": 7}]}', None),
        (b'{"records": [], "x": 1}', "x: there is no such field; leave it out, or use keyFormat"),
        (b'{"records": [NaN]}', "the body: is not JSON"),
    ],
)
def test_the_error_has_the_place_in_the_body(text: bytes, expected: str | None):
    if expected is None:  # a null says nothing, and a record that was read may be sent back
        assert "records" in parse_body("postData", text)
        return
    with pytest.raises(StatusError) as refused:
        parse_body("postData", text)
    assert refused.value.status == 400
    assert str(refused.value).startswith(expected)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ('{"a": {"base64": "AP8=", "x": 1}}', "a.x: there is no such field; leave it out, or use"),
        ('{"a": ["b", {"base65": "AP8="}]}', "a[1].base65: there is no such field; did you mean"),
        ('{"a": [{"base64": "AP8=", "value": 1}]}', "a[0].value: there is no such field;"),
        ('{"a": {}}', 'a: "base64" is a required property; add it'),
        ('{"a": ["b", 7]}', "a[1]: 7 is not of types"),
        ('{"a": {"base64": "!"}}', 'a.base64: "!" does not match'),
        ('{"a": "b", "c": null, "d": [null, {"base64": "AP8=", "x": null}]}', ""),
    ],
)
def test_a_header_in_base64_has_nothing_else(headers: str, expected: str):
    """Other fields were ignored, and the error of a wrong element did not have its place."""
    body = f'{{"records": [{{"value": 1}}, {{"headers": {headers}}}]}}'.encode()
    if not expected:
        assert parse_body("postData", body)
        return
    with pytest.raises(StatusError) as refused:
        parse_body("postData", body)
    assert str(refused.value).startswith(f"records[1].headers.{expected}")


@pytest.mark.parametrize("headers", [{"a": [1] * 50_000}, {f"a{n}": 1 for n in range(50_000)}])
def test_only_one_error_of_a_body_is_computed(headers: Any):
    """50,000 wrong elements took the event loop for 3 s, and their errors half a gigabyte."""
    body = json.dumps({"records": [{"headers": headers}]}).encode()
    start = time.process_time()
    with pytest.raises(StatusError, match="is not of types"):
        parse_body("postData", body)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("operation", ["postData", "produceV2"])
def test_a_request_has_a_limited_number_of_records(operation: str):
    """330,000 empty ones, of 1 MB, held up all other requests for seconds."""
    record = b'{"key": 1}'
    EVERY[operation].parse_body(b'{"records": [%s]}' % b",".join([record] * 10_000))
    with pytest.raises(
        StatusError, match=r"records: .*; send at most 10000 of them in one request"
    ) as refused:
        EVERY[operation].parse_body(b'{"records": [%s]}' % b",".join([record] * 10_001))
    assert refused.value.status == 400


def test_the_name_of_an_answer_is_no_field_of_the_request():
    """`instanceId`, as the answer has it, was ignored: the instance got a random name."""
    with pytest.raises(StatusError, match=r"instanceId: .*; did you mean 'name'\?"):
        parse_body("createConsumerInstanceInGroup", b'{"instanceId": "one"}')


BODIES = [
    item[method]["operationId"]
    for path, item in SERVED["paths"].items()
    for method in METHODS
    if "requestBody" in item.get(method, {}) and not path.startswith("/topics/")
]


@pytest.mark.parametrize("operation", BODIES)
def test_each_body_says_what_is_wrong_and_what_to_do(operation: str):
    """The description of an invalid request repeated its message, and most unknown fields were
    ignored."""
    for body in (b'{"nonsense": 1}', b"7"):
        with pytest.raises(StatusError) as refused:
            parse_body(operation, body)
        status = build_status(400, refused.value.code, str(refused.value))
        assert status["code"] == "INVALID_REQUEST"
        assert status["description"] not in status["message"]


@pytest.mark.parametrize(
    ("operation", "body", "expected"),
    [
        ("commmitConsumerOffsets", "{}", "give it exactly one of"),
        ("commmitConsumerOffsets", '{"offsets": [], "partitions": []}', "give it exactly one of"),
        ("commmitConsumerOffsets", '{"offset": []}', "did you mean 'offsets'"),
        ("commmitConsumerOffsets", '{"topics": []}', "topics: there is no such field"),
        ("overrideFetchOffset", '{"partitions": []}', "partitions: there is no such field"),
        ("createConsumerInstanceInGroup", '{"instanceId": "one"}', "did you mean 'name'"),
        ("produceV2", '{"keyFormat": "json", "records": [{}]}', "keyFormat: there is no such"),
    ],
)
def test_a_body_without_its_fields_is_refused_in_both_dialects(
    operation: str, body: str, expected: str
):
    """A commit committed all that was polled, and with v2's types unknown fields were ignored."""
    with pytest.raises(StatusError, match=re.escape(expected)) as refused:
        EVERY[operation].parse_body(body.encode())
    assert refused.value.status == 400
    with pytest.raises(StatusError, match=re.escape(expected)) as refused:
        CONFLUENT.parse_body(EVERY[operation], body.encode(), None)
    assert refused.value.status == 422


def test_fields_of_a_record_that_was_read_may_be_sent_back():
    record = resolve_schema(SERVED["components"]["schemas"]["ConsumerRecord"])
    assert record["properties"].keys() == READ_RECORD_FIELDS


def test_a_body_that_is_nested_too_deep_is_the_clients_mistake():
    """The ValueError of the validator was a 500, and the end of an NDJSON request."""
    body = b'{"records": [{"partition": %b1%b}]}' % (b"[" * 300, b"]" * 300)
    with pytest.raises(StatusError, match="the body: is nested too deep; flatten it"):
        EVERY["postData"].parse_body(body)


def test_a_value_with_a_semicolon_does_not_end_the_message():
    with pytest.raises(StatusError) as refused:
        parse_body("postData", b'{"records": [], "keySchemaId": "a; b"}')
    status = build_status(400, "INVALID_REQUEST", str(refused.value))
    assert "integer" in status["message"] and status["description"].startswith("send a value")


def test_a_body_that_is_no_json_by_its_own_word_is_refused():
    with pytest.raises(StatusError) as refused:
        parse_body("postData", b"a=b", "application/x-www-form-urlencoded")
    assert refused.value.status == 415
    assert parse_body("postData", b'{"records":[]}', "application/vnd.kafka.v2+json; charset=utf-8")


def test_null_where_a_body_is_needed_is_refused_in_either_dialect():
    """In that of Confluent it was a 500."""
    for expected, refuse in ((400, EVERY["assignPartitions"].parse_body), (422, _parse_v2)):
        with pytest.raises(StatusError) as refused:
            refuse(b"null")
        assert refused.value.status == expected
    assert CONFLUENT.parse_body(EVERY["createConsumerInstanceInGroup"], b"null", None) is None


def _parse_v2(text: bytes) -> Any:
    return CONFLUENT.parse_body(EVERY["assignPartitions"], text, None)


def build_request(query: str = "", headers: Any = (), **path: str) -> Request:
    return Request(
        {
            "type": "http", "method": "POST", "path": "/", "query_string": query.encode(),
            "headers": list(headers), "path_params": path,
        }
    )  # fmt: skip


def test_parameters_are_converted_and_a_typing_error_is_refused():
    asked = EVERY["postData"].parse_parameters(
        build_request("keyFormat=json&other=1", [(b"idempotency-key", b"k")], topic="t")
    )
    assert asked == {"topic": "t", "keyFormat": "json", "Idempotency-Key": "k"}
    for query, expected in (
        ("keyFormat=jsn", "query keyFormat: "),
        ("keyFormt=json", "query keyFormt: there is no such parameter; did you mean 'keyFormat'?"),
        ("keyFormat=json&keyFormat=json", "query keyFormat: is given more than once"),
    ):
        with pytest.raises(StatusError) as refused:
            EVERY["postData"].parse_parameters(build_request(query, topic="t"))
        assert str(refused.value).startswith(expected)


def test_the_page_has_every_operation_and_no_script():
    page = render_page(SERVED, "<b>shop</b>")
    assert "&lt;b&gt;shop" in page and "<b>" not in page
    assert "<script" not in page and "http://" not in page
    for path, _, operation in OPERATIONS:
        assert f'id="{operation["operationId"]}"' in page
        assert path in page
    for name in SERVED["components"]["schemas"]:
        assert f'id="schema-{name}"' in page


def test_the_page_has_its_operations_in_groups_that_begin_with_producing():
    """All operations were one list that began with audit records, without a list of contents."""
    page = render_page(SERVED, "shop")
    contents = re.findall(r'<li><a href="#([^"]+)"', page)
    groups = re.findall(r'<h2 id="([^"]+)"', page)
    assert contents == groups
    assert groups[:2] == ["group-producer", "group-consumer"] and groups[-1] == "schemas"
    count = sum(method in item for item in SERVED["paths"].values() for method in METHODS)
    assert page.count('<details class="operation"') == count


def test_responses_are_in_the_order_of_their_statuses():
    """429 was behind 503."""
    for item in SERVED["paths"].values():
        for method in METHODS:
            statuses = list(item.get(method, {}).get("responses", ()))
            assert statuses == sorted(statuses)


def test_every_link_of_the_page_leads_somewhere():
    page = render_page(SERVED, "shop")
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(re.findall(r'id="([^"]+)"', page))
