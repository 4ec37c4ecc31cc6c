"""Connect to one Kafka cluster: connections, metadata, coordinators and offsets.

Start reading with `cluster`: fetching, producing, groups and the admin calls get a `Cluster` and
reach everything else through it. `connections` shares one connection to each broker and role,
`metadata` watches topics, `coordinators` finds the brokers of groups, `offsets` looks up where
logs begin and end, and `outages` logs what cannot be used. `security` has TLS and SASL.
"""

from . import aiokafka_internals as aiokafka_internals  # first: it checks aiokafka
