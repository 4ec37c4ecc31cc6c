"""Check what must agree between sections: names, guards, clusters, jobs.

Each check yields problems with the path of the option at fault. `Settings.check_raw` calls
`crosscheck`, which calls the other checks of raw values; `warnings` and `reload` work on valid
settings. Start reading at `crosscheck`.
"""
