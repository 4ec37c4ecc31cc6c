"""What must agree between sections: names, guards, clusters, jobs.

Each check yields problems with the place of the option at fault. Start with `crosscheck`.
"""
