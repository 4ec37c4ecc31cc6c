"""Limit what one value takes that its bytes do not bound.

The bytes of a body or record are limited, but not what becomes of them: defaults that a schema adds
to an empty object, names and defaults in the JSON of an empty message, branches of a union that are
tried in vain. Each codec counts them in a `Budget` where it walks through the value.
"""

from __future__ import annotations

from gateway.errors import FormatError

COMPILED_FACTOR = 50  # what a compiled schema takes, as a multiple of its text: as Avro does
FREE_JSON_BYTES = 1 << 18
# Enough for the field with a long name whose value is `false`, which is one byte of Avro.
JSON_BYTES_PER_BYTE = 128
# Beyond it, 4 for each byte: Avro of 40 KB that became 5 MB took 0.26 s, which nothing divides.
LARGE_JSON_BYTES = 8 << 20


class Budget:
    """An amount that each value of a schema may take; `renew` it before the next value.

    `spend` raises no SchemaMismatch, after which a union of Avro would take its next branch.
    """

    def __init__(self, limit: int, problem: str) -> None:
        self._limit = self.left = limit
        self._problem = problem

    def spend(self, amount: int) -> None:
        """Take an amount; raises FormatError with the problem if there is not so much left."""
        self.left -= amount
        if self.left < 0:
            raise FormatError(self._problem)

    def renew(self) -> None:
        self.left = self._limit


def create_json_budget(size: int) -> Budget:
    """Return the budget, in bytes, of the JSON that a key or value of so many bytes becomes."""
    limit = min(FREE_JSON_BYTES + JSON_BYTES_PER_BYTE * size, max(LARGE_JSON_BYTES, 4 * size))
    return Budget(limit, f"{size} bytes come to more than {limit} of JSON")
