"""Records to Kafka, in the dialect: `POST /topics/{topic}`, also `/partitions/{partition}` of it.

The format is that of the Content-Type, binary where it names none. Either all records can be
written as they are, or none is (422); what Kafka makes of each stands in its place of `offsets`,
with error code 2 where trying again may help and 1 where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.errors import FormatError
from gateway.formats import exact_numbers
from gateway.formats.codec import SchemaSelector, SerializationFormat
from gateway.formats.plain import encode_plain
from gateway.sidecar.consumer.dialect import TrailingSlashRoute
from gateway.sidecar.context import Context
from gateway.sidecar.http.authorization import WRITE_SCOPE
from gateway.sidecar.http.body import read_body
from gateway.sidecar.http.ids import get_current_ids
from gateway.sidecar.http.spec import create_invalid_request
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.producer import outcome
from gateway.sidecar.producer.encoding import (
    DOUBTFUL,
    UNWRITTEN,
    EncodedRecords,
    FieldEncoding,
    map_formats,
)
from gateway.sidecar.producer.producer import ProducerComponent
from gateway.sidecar.topics import describe_topic

from .dialect import CONFLUENT, parse_content_type, parse_json
from .endpoints import create_endpoint, parse_partition
from .errors import RETRIABLE, to_unprocessable

NON_RETRIABLE_CODE, RETRIABLE_CODE = 1, 2


class Writing:
    """The part; see the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        producers = context.components["producer"]
        assert isinstance(producers, ProducerComponent)
        self._producers = producers
        self._operation = context.spec["produceV2"]
        one = "/topics/{topic}/partitions/{partition}"
        self.routes: Sequence[BaseRoute] = [
            TrailingSlashRoute("/topics/{topic}", create_endpoint(self._produce), "POST"),
            TrailingSlashRoute(one, create_endpoint(self._produce), "POST"),
        ]

    async def run(self) -> None:
        """Nothing runs beside it."""

    async def check_ready(self) -> None:
        """Kafka is checked for all parts."""

    async def _produce(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        await self._context.authorize(request, WRITE_SCOPE, [topic])
        if "Idempotency-Key" in request.headers:
            what = "means nothing in the dialect of v2"
            what = f"{what}; send application/json, or leave it out"
            raise to_unprocessable(create_invalid_request("header Idempotency-Key", what))
        kind = request.headers.get("content-type")
        format = parse_content_type(kind).format or SerializationFormat.BINARY
        data = await read_body(request, self._producers.settings.max_bytes)
        await describe_topic(self._context, topic)
        tp = None
        if "partition" in request.path_params:
            tp = await parse_partition(self._context, request)
        wanted = parse_json(self._operation, data)
        try:
            self._validate(wanted)
            records, headers = _parse_records(
                wanted["records"], None if tp is None else tp.partition
            )
        except StatusError as exc:
            raise to_unprocessable(exc) from None
        sides = [_parse_encoding(wanted, name, format) for name in ("key", "value")]
        exact_numbers.keep_exact_numbers(data, records, map_formats(sides))
        order = await self._encode_records(topic, records, sides)
        for at, pairs in headers.items():
            item = order.items[at]
            order.items[at] = item._replace(headers=(*pairs, *item.headers))
        written = self._context.producer.send_many
        release = await self._producers.lock_keys(topic, order)
        try:
            results = await written(order.items, timeout_s=self._producers.settings.timeout)
        finally:
            release()
        self._producers.audit_results(order, results)
        return self._build_response(request, outcome.describe_results(order, results), order)

    def _validate(self, wanted: Any) -> None:
        validator = self._operation.validator
        assert validator is not None
        validator.validate(wanted)
        for index, record in enumerate(wanted["records"]):
            if not record.keys() & {"key", "value"}:
                raise create_invalid_request(
                    f"records[{index}]", "has neither key nor value; give it one"
                )

    async def _encode_records(
        self, topic: str, records: Sequence[Mapping[str, Any]], sides: Sequence[FieldEncoding]
    ) -> EncodedRecords:
        """Raises Refusal 422 where one of them cannot be written as it is."""
        known = await self._context.get_topic(topic)
        for at, name in enumerate(("key", "value")):
            given = any(record.get(name) is not None for record in records)
            schema = sides[at].schema
            if given and sides[at].format.has_schema and schema.text is None and schema.id is None:
                what = f"there are {name}s, and no {name}_schema"
                word = f"{name.upper()}_SCHEMA_MISSING"
                raise StatusError(422, f"{what}; add that, or {name}_schema_id", code=word)
        order = await self._producers.encoder.encode(known, records, sides, get_current_ids())
        for failure in order.failures.values():
            raise FormatError(failure.error)
        return order

    def _build_response(
        self, request: Request, offsets: Sequence[Mapping[str, Any]], order: EncodedRecords
    ) -> Response:
        status = outcome.combine_status(list(map(dict, offsets)))
        told = [
            {
                "partition": each.get("partition"),
                "offset": each.get("offset"),
                "error_code": _get_error_code(each),
                "error": each.get("error"),
            }
            for each in offsets
        ]
        key, value = order.schema_ids
        body = {"offsets": told, "key_schema_id": key, "value_schema_id": value}
        if status < 300:
            return CONFLUENT.build_response(request, body)
        message = next(each["error"] for each in told if each["error"])
        code = RETRIABLE if status == UNWRITTEN else status
        return CONFLUENT.build_response(
            request, {"error_code": code, "message": message, **body}, status
        )


def _get_error_code(result: Mapping[str, Any]) -> int | None:
    code = result.get("errorCode")
    if code is None:
        return None
    return RETRIABLE_CODE if code in (UNWRITTEN, DOUBTFUL) else NON_RETRIABLE_CODE


def _parse_encoding(
    wanted: Mapping[str, Any], name: str, format: SerializationFormat
) -> FieldEncoding:
    id = wanted.get(f"{name}_schema_id")
    return FieldEncoding(
        format,
        SchemaSelector(id=None if id is None else int(id), text=wanted.get(f"{name}_schema")),
    )


def _parse_records(
    given: Sequence[Mapping[str, Any]], partition: int | None
) -> tuple[list[dict[str, Any]], dict[int, list[tuple[str, bytes | None]]]]:
    """As the contract has them; headers are pairs in base64, which it has not. Raises Refusal."""
    records: list[dict[str, Any]] = []
    headers: dict[int, list[tuple[str, bytes | None]]] = {}
    for index, record in enumerate(given):
        made = {name: record[name] for name in ("key", "value", "timestamp") if name in record}
        number = record.get("partition") if partition is None else partition
        if number is not None:
            made["partition"] = number
        if record.get("headers"):
            headers[index] = [_parse_header(each, index) for each in record["headers"]]
        records.append(made)
    return records, headers


def _parse_header(given: Mapping[str, Any], index: int) -> tuple[str, bytes | None]:
    name, value = given.get("key") or given.get("name") or "", given.get("value")
    try:
        return name, None if value is None else encode_plain(SerializationFormat.BINARY, value)
    except FormatError as exc:
        raise create_invalid_request(f"records[{index}].headers", str(exc)) from None
