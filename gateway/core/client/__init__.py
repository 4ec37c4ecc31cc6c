"""One client of a stream: where it stands, and what it is sent next.

A `subscription` reads shared chunks by its `shared_cursor`, and partitions that are elsewhere by a
`private_reader`. `write_batch` is what goes out at one time; `snapshot` and `table_snapshot` are
about streams that begin with the latest record of each key. Start with `subscription`.
"""
