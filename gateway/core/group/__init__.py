"""Decide what members of consumer groups send next, and what the answers do to them.

Start with `member`, the interface of both protocols. `consumer_member` is KIP-848 and
`classic_member` KIP-429, with its messages in `classic_requests`. `assignor` divides partitions
among classic members. `partition_state` is one partition that a consumer holds.
`gateway.kafka.group` is the shell that sends the requests.
"""
