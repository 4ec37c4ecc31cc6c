"""Running jobs: a query of each, begun again where that may help.

`runner` is `gateway pipeline run`, `run` one job from start to end, `query` its running query,
`failures` tells errors that may pass from final ones. Start with `runner`.
"""
