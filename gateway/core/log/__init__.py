"""Keep the log of a partition as the gateway sees it: its entries, and the place of reading.

Start with `record`, which has the entries of a log and the positions between them.
`partition_reader` decides what is asked of Kafka next and what an error means, with the table of
errors in `recovery`. `partition_log` keeps recent entries in memory, with a `key_index` while many
readers of single keys are behind. `gateway.kafka.fetch` drives the readers, `gateway.hub` the logs.
"""
