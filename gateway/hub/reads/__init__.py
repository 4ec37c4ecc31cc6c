"""Read from Kafka for clients: shared reads, private reads, snapshots and documents.

`shared_reads` fetches each partition once for all clients, into a `shared_tail` for each set of
topics; `pacing` decides how long records wait for more. `topic_opener` keeps topics open while
somebody uses them. A `view` is what a client sees of them. `token_verifier` decides what of a
resume token is believed, and `position_resolver` turns a client's request into offsets. `backfill`
finds what one client is missing, and `backfill_reader` fetches it. `key_indexes` builds indexes for
readers of single keys. `snapshots`, `tables` and `documents` serve the latest record of each key.
Start reading with `shared_reads`, then `backfill`.
"""
