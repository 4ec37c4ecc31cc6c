"""The reactive consumer: batches of a group's records are posted to a back end."""
