"""Write records from HTTP to Kafka, and answer what became of each.

Start with `producer`, the component. `encoding` turns the records of a request into Kafka's,
`outcome` answers what became of them, `ndjson` streams both ways, `transactions` writes a request
as a whole, and `idempotency` runs a request with an `Idempotency-Key` once. `app` creates the
component; `v2.produce` writes through it in Confluent's dialect.
"""

from .producer import ProducerComponent

__all__ = ["ProducerComponent"]
