"""Writing: what is sent to a partition next, and which requests were written before.

`outbox` keeps one batch of a partition under way and the others behind it; `idempotency` knows the
keys of what is in the log.
"""
