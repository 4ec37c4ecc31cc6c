"""Keep the log of a partition as the gateway sees it: what was read, and where reading stands.

Start with `record`, which has the entries a log consists of, and `position`, which says where a
stream stands. `partition_reader` then decides what is asked of Kafka next and what an error means,
with the table of errors in `recovery` and what `truncation` says of offsets out of range.
`partition_log` keeps recent entries in memory, with a `key_index` while many readers of single keys
are behind, and `tail` merges the partitions of a topic set into one order; `readiness` says when a
stream of that order may begin. `gateway.kafka.fetch` drives the readers, `gateway.hub` the logs and
tails.
"""
