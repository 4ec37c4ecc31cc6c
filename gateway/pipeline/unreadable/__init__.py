"""Records that Spark's connector cannot read: passed over, and told as invalid.

Spark has times in microseconds. A record whose timestamp is beyond what a long has of those ends
each batch that it is in, whatever columns are read (Spark 4.2.0), and no option of the connector
leaves it out. So the offsets in the checkpoint are edited before the query is begun again: the
batch that failed ends before the record, and the next one starts behind it. Begin with `skip`.
"""
