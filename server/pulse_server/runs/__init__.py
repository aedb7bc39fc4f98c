"""Runs of the service: their feeds, documents and layouts, workers' reports, and garbage collection."""
