"""Show operators a page of what the gateway does: `/console` on the admin listener.

The page is in `page/`: HTML, CSS and ES modules that browsers load as they are. It is fed by one
stream of server-sent events, and acts by the admin API. Start with `console`, which has the routes,
and passes on what is for the clients' port: a stream as the client that the operator describes,
dead letters and replays.

`worker_report` collects what one process knows and keeps ten minutes of its figures, which
`console` asks the workers for. The decisions in between do no I/O: `partition_watch` finds out what
changed in a process, and `overview` merges the workers. Kafka is asked only when an operator
looks, within the bounds of a `kafka_lookup`: for consumer groups, the newest records of a topic,
and the progress of Spark jobs.
"""
