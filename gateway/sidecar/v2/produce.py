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
from gateway.formats import digits
from gateway.formats.codec import Format, SchemaRef
from gateway.formats.plain import plain_bytes
from gateway.sidecar.consumer.dialect import Slashed
from gateway.sidecar.context import Context
from gateway.sidecar.http.body import read
from gateway.sidecar.http.ids import current
from gateway.sidecar.http.scope import WRITE
from gateway.sidecar.http.spec import wrong
from gateway.sidecar.http.status import Refusal
from gateway.sidecar.producer import outcome
from gateway.sidecar.producer.order import DOUBTFUL, UNWRITTEN, Order, Side, formats_of
from gateway.sidecar.producer.producer import Producers
from gateway.sidecar.topics import described

from .dialect import CONFLUENT, parsed, supported
from .errors import RETRIABLE, invalid
from .served import asked_partition, spoken

FINAL, AGAIN = 1, 2


class Writing:
    """The part; see the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        producers = context.parts["producer"]
        assert isinstance(producers, Producers)
        self._producers = producers
        self._operation = context.spec["produceV2"]
        one = "/topics/{topic}/partitions/{partition}"
        self.routes: Sequence[BaseRoute] = [
            Slashed("/topics/{topic}", spoken(self._post), "POST"),
            Slashed(one, spoken(self._post), "POST"),
        ]

    async def run(self) -> None:
        """Nothing runs beside it."""

    async def check(self) -> None:
        """Kafka is checked for all parts."""

    async def _post(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        await self._context.scope(request, WRITE, [topic])
        if "Idempotency-Key" in request.headers:
            what = "means nothing in the dialect of v2"
            what = f"{what}; send application/json, or leave it out"
            raise invalid(wrong("header Idempotency-Key", what))
        kind = request.headers.get("content-type")
        format = supported(kind).format or Format.BINARY
        data = await read(request, self._producers.settings.max_bytes)
        await described(self._context, topic)
        tp = None
        if "partition" in request.path_params:
            tp = await asked_partition(self._context, request)
        wanted = parsed(self._operation, data)
        try:
            self._check(wanted)
            records, headers = _records(wanted["records"], None if tp is None else tp.partition)
        except Refusal as exc:
            raise invalid(exc) from None
        sides = [_side(wanted, name, format) for name in ("key", "value")]
        digits.keep(data, records, formats_of(sides))
        order = await self._order(topic, records, sides)
        for at, pairs in headers.items():
            item = order.items[at]
            order.items[at] = item._replace(headers=(*pairs, *item.headers))
        written = self._context.producer.put_many
        release = await self._producers.hold(topic, order)
        try:
            results = await written(order.items, within=self._producers.settings.timeout)
        finally:
            release()
        self._producers.audit(order, results)
        return self._told(request, outcome.each(order, results), order)

    def _check(self, wanted: Any) -> None:
        validator = self._operation.validator
        assert validator is not None
        validator.check(wanted)
        for index, record in enumerate(wanted["records"]):
            if not record.keys() & {"key", "value"}:
                raise wrong(f"records[{index}]", "has neither key nor value; give it one")

    async def _order(
        self, topic: str, records: Sequence[Mapping[str, Any]], sides: Sequence[Side]
    ) -> Order:
        """Raises Refusal 422 where one of them cannot be written as it is."""
        known = await self._context.topic(topic)
        for at, name in enumerate(("key", "value")):
            given = any(record.get(name) is not None for record in records)
            schema = sides[at].schema
            if given and sides[at].format.has_schema and schema.text is None and schema.id is None:
                what = f"there are {name}s, and no {name}_schema"
                word = f"{name.upper()}_SCHEMA_MISSING"
                raise Refusal(422, f"{what}; add that, or {name}_schema_id", code=word)
        order = await self._producers.orders.of(known, records, sides, current())
        for failure in order.failures.values():
            raise FormatError(failure.error)
        return order

    def _told(
        self, request: Request, offsets: Sequence[Mapping[str, Any]], order: Order
    ) -> Response:
        status = outcome.status_of(list(map(dict, offsets)))
        told = [
            {
                "partition": each.get("partition"),
                "offset": each.get("offset"),
                "error_code": _code(each),
                "error": each.get("error"),
            }
            for each in offsets
        ]
        key, value = order.schema_ids
        body = {"offsets": told, "key_schema_id": key, "value_schema_id": value}
        if status < 300:
            return CONFLUENT.answer(request, body)
        message = next(each["error"] for each in told if each["error"])
        code = RETRIABLE if status == UNWRITTEN else status
        return CONFLUENT.answer(request, {"error_code": code, "message": message, **body}, status)


def _code(result: Mapping[str, Any]) -> int | None:
    code = result.get("errorCode")
    if code is None:
        return None
    return AGAIN if code in (UNWRITTEN, DOUBTFUL) else FINAL


def _side(wanted: Mapping[str, Any], name: str, format: Format) -> Side:
    id = wanted.get(f"{name}_schema_id")
    return Side(
        format, SchemaRef(id=None if id is None else int(id), text=wanted.get(f"{name}_schema"))
    )


def _records(
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
            headers[index] = [_pair(each, index) for each in record["headers"]]
        records.append(made)
    return records, headers


def _pair(given: Mapping[str, Any], index: int) -> tuple[str, bytes | None]:
    name, value = given.get("key") or given.get("name") or "", given.get("value")
    try:
        return name, None if value is None else plain_bytes(Format.BINARY, value)
    except FormatError as exc:
        raise wrong(f"records[{index}].headers", str(exc)) from None
