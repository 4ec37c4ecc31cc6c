"""Write records to Kafka, idempotently and acknowledged by all in-sync replicas.

`producer` writes to any topic with one batch of each partition in flight; the hub and the sidecar
share it. `transactional_producer` writes records and offsets of several partitions as a whole.
`line_producer` is the command `gateway produce`. Start reading with `producer`.
"""
