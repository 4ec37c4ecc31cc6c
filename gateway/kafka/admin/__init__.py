"""Administer a cluster: describe and change consumer groups, create topics, delete records.

`groups` lists and describes groups of both protocols and moves or deletes their offsets, `topics`
creates the topics that the gateway itself needs, and deletes records. Both get a `Cluster`. The
sidecar and the commands of the CLI call this package. Start reading with `groups`.

aiokafka's admin client is not used: it knows classic groups only (no ConsumerGroupDescribe of
KIP-848), cannot move or delete the offsets of a group or delete a group, and would open connections
of its own, with another backoff than the cluster's.
"""
