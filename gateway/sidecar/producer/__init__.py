"""Write records from HTTP to Kafka, and answer with the outcome of each.

Start with `producer`, the component. `records` turns the records of a request into Kafka's, and
builds the answer; `ndjson` streams both ways, `transactions` writes a request as a whole, and
`idempotency` runs a request with an `Idempotency-Key` once, by what `claim_log` reads. `confluent`
writes through the component in Confluent's dialect.
"""

from .producer import ProducerComponent

__all__ = ["ProducerComponent"]
