"""Kafka over HTTP for a back end in any language: it writes, reads, is called with batches.

Parts (`part`) are made with one context (`context`) and served by one application (`app`).
"""
