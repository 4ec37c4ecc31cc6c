"""The part `producer`: records over HTTP to Kafka, and what became of each.

`producer` has the operations, `order` what a request asks for, `idempotency` the requests that are
done once, `transactions` those that are written as a whole. Start with `producer`.
"""

from .producer import ProducerComponent

__all__ = ["ProducerComponent"]
