"""Limit the bytes of Avro that a short JSON value becomes."""

from __future__ import annotations

from gateway.errors import FormatError

# A field that is missing may have a default of any size, and so may each element of an array: 30 kB
# of `{}` could become 100 MB of Avro. A decimal "1e200" has as many zeros as its scale.
MAX_EXPANSION_BYTES = 16 << 20


class ExpansionBudget:
    """Limit the bytes of defaults and of zeros in decimals that one JSON value takes.

    One instance per schema, owned by its codec, which calls `renew` after each value.
    """

    def __init__(self) -> None:
        self._bytes_left = MAX_EXPANSION_BYTES

    def spend(self, size: int) -> None:
        """Take bytes from the budget.

        Raises FormatError if it does not have so many: after a SchemaMismatch, a union would take
        its next branch.
        """
        self._bytes_left -= size
        if self._bytes_left < 0:
            limit = f"{MAX_EXPANSION_BYTES >> 20} MiB"
            problem = f"more than {limit} of defaults for missing fields and zeros of decimals"
            raise FormatError(f"the value takes {problem}; divide it")

    def renew(self) -> None:
        self._bytes_left = MAX_EXPANSION_BYTES
