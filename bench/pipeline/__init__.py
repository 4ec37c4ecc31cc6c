"""Measure the pipeline: `python -m bench.pipeline --only sessions`."""
