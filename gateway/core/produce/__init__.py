"""Decide what is written to a partition next, and which requests were written before.

Start with `outbox`, which keeps one batch of a partition in flight and the others behind it.
`idempotency` knows the keys of the records in the log. `gateway.kafka.produce` drives the outboxes,
`gateway.hub.writes` asks for keys.
"""
