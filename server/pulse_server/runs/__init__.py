"""What the service knows of runs: their feeds, documents and layouts, workers' reports, and garbage collection."""
