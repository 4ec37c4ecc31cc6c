"""Find out why records of a running gateway are slow or missing, for `gateway doctor`.

`collection` scrapes the metrics twice and asks the admin API, for an `Observation`. `diagnosis`
applies its rules to that, in order, and formats the result. A rule is a name, a title, advice, and
a function that returns the evidence; the rules are in `kafka_rules`, `client_rules` and
`process_rules`, and do no I/O.

Start reading in `diagnosis`, which lists the rules.
"""

from __future__ import annotations

from .run import doctor

__all__ = ["doctor"]
