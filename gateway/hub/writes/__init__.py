"""Records of clients on their way to Kafka.

`writer` is given them; `publisher` has what all writers share; `idempotency_log` knows the keys
that a partition's log holds.
"""
