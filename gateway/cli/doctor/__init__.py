"""Find out why records of a running gateway are slow or missing, for `gateway doctor`.

`collection` scrapes the metrics twice and asks the admin API; what it learned is an `Observation`.
`diagnosis` applies its rules to that, in order, and `report` formats the result. The rules are
data: a name, a title, what to change, and a function that returns the evidence. They are in
`kafka_rules`, `client_rules` and `process_rules`, and do no I/O.

Start reading in `diagnosis`, which lists the rules.
"""

from __future__ import annotations

from .run import doctor

__all__ = ["doctor"]
