"""Build records of 1 KB as services write them: an order in JSON, with its customer as the key."""

from __future__ import annotations

from typing import Any

import orjson

VALUE_BYTES = 1024  # bytes of a value
KEY_COUNT = 1000


def build_key(n: int) -> str:
    return f"customer-{n % KEY_COUNT}"


def build_order(n: int) -> dict[str, Any]:
    """Numbers, truth values, texts, an object and a list; `SIZE` bytes without spaces."""
    made: dict[str, Any] = {
        "order": f"o-{n:08d}",
        "customer": build_key(n),
        "placed": "2026-01-31T12:00:00.000Z",
        "currency": "EUR",
        "total": 1234.5,
        "paid": True,
        "voucher": None,
        "address": {
            "name": "Zoë Ångström",
            "street": "Rue de l'Église 12",
            "city": "Besançon",
            "zip": "25000",
            "country": "FR",
        },
        "lines": [
            {"sku": f"s-{n % 97:05d}-{each}", "name": "Teapot, blue", "count": each, "price": 19.95}
            for each in range(1, 8)
        ],
        "note": "",
    }
    made["note"] = "x" * (VALUE_BYTES - len(orjson.dumps(made)))
    return made


def encode_order(n: int) -> bytes:
    return orjson.dumps(build_order(n))
