"""What operators ask of a cluster: groups, topics, and records that are deleted."""
