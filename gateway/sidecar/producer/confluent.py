"""Write records in the dialect of v2.

It serves `POST /topics/{topic}` and `POST /topics/{topic}/partitions/{partition}`. The format is
that of the Content-Type, or binary if it names none. Either all records can be encoded, or none is
written (422). Kafka's answer for each is at its place in `offsets`, with error code 2 where trying
again may help, and 1 where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import FormatError
from gateway.formats.codec import SchemaSelector, SerializationFormat
from gateway.formats.exact_values import keep_exact_numbers
from gateway.formats.plain import PLAIN_CODECS
from gateway.sidecar.consumer.dialect import (
    CONFLUENT,
    RETRIABLE,
    create_endpoint,
    parse_content_type,
    parse_json,
    parse_partition,
)
from gateway.sidecar.context import Component, Context
from gateway.sidecar.http.middleware import WRITE_SCOPE, TrailingSlashRoute
from gateway.sidecar.http.requests import (
    get_current_ids,
    hold_encoded,
    read_body,
    release_parsed,
)
from gateway.sidecar.http.spec import create_invalid_request
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.lookups import check_writable, describe_topic
from gateway.sidecar.turns import take_turns

from .producer import ProducerComponent
from .records import (
    DOUBTFUL,
    UNWRITTEN,
    EncodedRecords,
    FieldEncoding,
    combine_status,
    describe_results,
    map_formats,
)

NON_RETRIABLE_CODE, RETRIABLE_CODE = 1, 2


class Writing(Component):
    def __init__(self, context: Context) -> None:
        self._context = context
        producers = context.components["producer"]
        assert isinstance(producers, ProducerComponent)
        self._producers = producers
        self._operation = context.spec["produceV2"]
        partition_path = "/topics/{topic}/partitions/{partition}"
        self.routes = [
            TrailingSlashRoute("/topics/{topic}", create_endpoint(self._produce), "POST"),
            TrailingSlashRoute(partition_path, create_endpoint(self._produce), "POST"),
        ]

    async def _produce(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        await self._context.authorize(request, WRITE_SCOPE, [topic])
        check_writable(self._context, topic)
        if "Idempotency-Key" in request.headers:
            problem = "means nothing in the dialect of v2; send application/json, or leave it out"
            error = create_invalid_request("header Idempotency-Key", problem)
            raise CONFLUENT.translate_invalid(error)
        content_type = request.headers.get("content-type")
        format = parse_content_type(content_type).format or SerializationFormat.BINARY
        data = await read_body(request, self._producers.settings.max_bytes)
        # The order of checks decides which error a client gets: an unknown topic or partition is
        # a 404 even if the body is invalid, too.
        await describe_topic(self._context, topic)
        tp = None
        if "partition" in request.path_params:
            tp = await parse_partition(self._context, request)
        partition = None if tp is None else tp.partition
        encoded = await self._encode_body(request, topic, data, format, partition)
        release_parsed(request)
        results = await self._producers.write(topic, encoded)
        self._producers.audit_results(encoded, results)
        return self._build_response(request, describe_results(encoded, results), encoded)

    async def _encode_body(
        self,
        request: Request,
        topic: str,
        data: bytes,
        format: SerializationFormat,
        partition: int | None,
    ) -> EncodedRecords:
        """Parse and validate the body of a request, and encode its records, or none.

        The parsed body is freed on return, as by `ProducerComponent`. Raises StatusError 422 or
        FormatError.
        """
        try:
            async with take_turns():
                body = parse_json(self._operation, data)
                self._validate(body)
                encodings = [_parse_encoding(body, name, format) for name in ("key", "value")]
                # JSON values are written with the digits that the client sent, not as floats.
                keep_exact_numbers(data, body, body["records"], map_formats(encodings))
                records, headers = _parse_records(body["records"], partition)
        except StatusError as exc:
            raise CONFLUENT.translate_invalid(exc) from None
        encoded = await self._encode_records(request, topic, records, encodings)
        # Items are in the order of the records here, as a record that cannot be encoded has raised.
        for index, pairs in headers.items():
            item = encoded.items[index]
            encoded.items[index] = item._replace(headers=(*pairs, *item.headers))
        return encoded

    def _validate(self, body: Any) -> None:
        """Check a body; beyond its schema, each record must have a key or a value."""
        validator = self._operation.validator
        assert validator is not None
        validator.validate(body)
        for index, record in enumerate(body["records"]):
            if not record.keys() & {"key", "value"}:
                raise create_invalid_request(
                    f"records[{index}]", "has neither key nor value; give it one"
                )

    async def _encode_records(
        self,
        request: Request,
        topic: str,
        records: Sequence[Mapping[str, Any]],
        encodings: Sequence[FieldEncoding],
    ) -> EncodedRecords:
        topic_metadata = await self._context.get_topic(topic)
        for position, name in enumerate(("key", "value")):
            is_used = any(record.get(name) is not None for record in records)
            schema = encodings[position].schema
            has_schema = schema.text is not None or schema.id is not None
            if is_used and encodings[position].format.has_schema and not has_schema:
                problem = f"there are {name}s, and no {name}_schema"
                word = f"{name.upper()}_SCHEMA_MISSING"
                raise StatusError(422, f"{problem}; add that, or {name}_schema_id", code=word)
        async with take_turns() as turns:
            encoded = await self._producers.encoder.encode(
                turns, topic_metadata, records, encodings, get_current_ids(),
                partial(hold_encoded, request),
            )  # fmt: skip
        for failure in encoded.failures.values():  # the first one fails the request
            raise FormatError(failure.error)
        return encoded

    def _build_response(
        self, request: Request, offsets: Sequence[Mapping[str, Any]], encoded: EncodedRecords
    ) -> Response:
        """Build the response, whose body has an error at the top, too, if no record was written."""
        status = combine_status(list(map(dict, offsets)))
        results = [
            {
                "partition": result.get("partition"),
                "offset": result.get("offset"),
                "error_code": _get_error_code(result),
                "error": result.get("error"),
            }
            for result in offsets
        ]
        key, value = encoded.schema_ids
        body = {"offsets": results, "key_schema_id": key, "value_schema_id": value}
        if status < 300:
            return CONFLUENT.build_response(request, body)
        message = next(result["error"] for result in results if result["error"])
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
    body: Mapping[str, Any], name: str, format: SerializationFormat
) -> FieldEncoding:
    id = body.get(f"{name}_schema_id")
    return FieldEncoding(
        format,
        SchemaSelector(id=None if id is None else int(id), text=body.get(f"{name}_schema")),
    )


def _parse_records(
    entries: Sequence[Mapping[str, Any]], partition: int | None
) -> tuple[list[dict[str, Any]], dict[int, list[tuple[str, bytes | None]]]]:
    """Return the records in the contract's form, and the headers of those that have any, by index.

    Headers are pairs in base64 in this dialect, which the contract has not.
    """
    records: list[dict[str, Any]] = []
    headers: dict[int, list[tuple[str, bytes | None]]] = {}
    for index, record in enumerate(entries):
        converted = {name: record[name] for name in ("key", "value", "timestamp") if name in record}
        number = record.get("partition") if partition is None else partition
        if number is not None:
            converted["partition"] = number
        if record.get("headers"):
            headers[index] = [_parse_header(header, index) for header in record["headers"]]
        records.append(converted)
    return records, headers


def _parse_header(header: Mapping[str, Any], index: int) -> tuple[str, bytes | None]:
    name, value = header.get("key") or header.get("name") or "", header.get("value")
    try:
        return name, None if value is None else PLAIN_CODECS[SerializationFormat.BINARY].encode(
            value
        )
    except FormatError as exc:
        raise create_invalid_request(f"records[{index}].headers", str(exc)) from None
