"""Count what the gateway does, and send it out as metrics, traces and logs.

Every layer imports this package; it imports none of them. `catalog` names every metric. `traffic`,
`counts`, `histogram` and `loop_lag` hold numbers that the code counts as it runs, and `samples`
collects them when somebody asks. `prometheus`, `otlp` and `influx` write the samples in the format
of a back end. `traces` makes spans; `logs`, `log_context` and `redaction` make log lines. Start
reading with `catalog`.
"""
