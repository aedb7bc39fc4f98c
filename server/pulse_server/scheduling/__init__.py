"""Scheduling: shares of threads by caller, calls in threads, waiters, and background work."""
