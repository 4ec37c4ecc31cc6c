"""Rows of a query into Kafka, each exactly once for readers of committed records.

`plan` has the rules, `ledger` what is remembered in Kafka, `producers` what workers keep, `task`
what they do, `writer` what the driver does. `gaps` tells what retention took of the input, `side`
writes late and undecodable records.
"""

from __future__ import annotations

from .writer import ExactlyOnceWriter

__all__ = ["ExactlyOnceWriter"]
