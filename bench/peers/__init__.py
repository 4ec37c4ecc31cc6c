"""Run the servers that are compared, all with the same interface."""
