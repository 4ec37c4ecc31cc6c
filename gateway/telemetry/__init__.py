"""Metrics, traces and logs: what is counted, and how it leaves the process.

Any layer may import this package. `catalog` lists every metric, `traffic` and `tallies` count where
something happens, `figures` reads them, `prometheus`, `otlp` and `influx` send them. Start with
`catalog`.
"""
