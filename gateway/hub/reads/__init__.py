"""What is read of Kafka for clients: the shared reads, and those of one client.

`feeds` are the shared reads of partitions, `topics` keeps them open, `archive` reads for clients
that are behind, `backfill` brings what one client lacks, `snapshots` and `tables` the latest of
each key. `resumption` checks tokens. Start with `feeds`.
"""
