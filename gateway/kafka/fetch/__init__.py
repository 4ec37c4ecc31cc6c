"""Fetch partitions from Kafka and turn their bytes into entries in offset order.

The shared reads of the hub and its backfills use a `Fetcher` (`fetcher`), which drives one
`PartitionReader` of `gateway.core.log` for each partition: `broker_fetch_loop` sends the fetch
requests of one broker, `decoding` turns record sets into entries, and `record_batch` reads the
bytes of single batches. `bounded_read` reads a range of a partition once, for lookups and for the
sidecar. Start reading with `fetcher`.
"""
