"""Producing: records to Kafka, idempotent, with acks of all.

`producer` keeps one batch of each partition under way, `transactions` writes several records as a
whole. `line_producer` is behind `gateway produce`. Start with `producer`.
"""
