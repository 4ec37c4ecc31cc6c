"""Count what the gateway does, and send it out as metrics, traces and logs.

Every layer imports this package; it imports none of them. `catalog` names every metric. `traffic`,
`counts` and `process` hold numbers that the code counts as it runs, and `samples` collects them
when somebody asks; `prometheus`, `otlp` and `influx` write them for a back end. `traces` makes
spans, and `logs` makes log lines. `faults` says what goes wrong, for doctor, alerts and runbooks.
Start reading with `catalog`.
"""
