"""What the pipeline takes: `python -m bench.pipeline --only sessions`."""
