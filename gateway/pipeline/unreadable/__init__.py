"""Skip records that Spark's connector cannot read, and report them as invalid.

Spark stores times as microseconds in a signed 64-bit integer. A record whose timestamp is outside
of that range fails every batch that it is in, whatever columns are read (Spark 4.2.0), and the
connector has no option to leave it out. So the offsets in the checkpoint are edited before the
query is started again: the failed batch ends before the record, and the next one starts behind it.

The runner calls `skip.skip_records` between two starts of a query; start reading there. `offsets`
edits the checkpoint, `records` reads such records with librdkafka, `dead_letters` writes them to
the topic of dead letters, and `table` reads topics that have such records as tables.
"""
