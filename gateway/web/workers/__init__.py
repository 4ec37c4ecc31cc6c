"""Several processes on one port: the supervisor, its workers, and what they tell each other.

`supervisor` starts each `worker` and looks after it; the `bus` is how they talk. Start with
`supervisor`.
"""
