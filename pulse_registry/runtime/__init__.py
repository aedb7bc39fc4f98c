"""What a registry runs on: its store, threads, log, lease and reports, put together and ended in order."""
