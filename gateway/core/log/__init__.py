"""The log of a partition: what is read of it, and where it stands.

`record` has the entries, `partition_reader` decides what is fetched next and what an error means,
`recovery` is its table of errors, `partition_log` keeps recent entries, and `tail` merges
partitions into one order. Start with `record`, then `partition_reader`.
"""
