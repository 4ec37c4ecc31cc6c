"""A soak: thousands of clients come and go for a long time, and nothing may grow.

`run` starts brokers and a gateway of two workers, has clients and faults come, and samples what
every worker holds. `clients` are the clients, `census` looks into the workers, `result` judges, and
`report` draws. `make soak MINUTES=30` runs it.
"""
