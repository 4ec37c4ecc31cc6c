"""Write clients' records to Kafka, at most once for each idempotency key.

A `RecordWriter` takes the records of one connection. The `Publisher` has what all writers of a hub
share, such as the producer. An `IdempotencyLog` finds the idempotency keys that are already in a
partition's log, and `DocumentKeyLocks` keep writers of documents apart. Start reading with
`writer`.
"""
