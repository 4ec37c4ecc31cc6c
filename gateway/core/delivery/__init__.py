"""Records on their way to a back end: batches, verdicts, dead letters, replays.

`lane` decides what is sent next, by the rules of `batch` and the `verdict` on each answer. `claims`
are for requests that are done once, `replay` for records that are read once more. Start with
`lane`.
"""
