"""Whose turn it is: shares of threads by caller, calls in threads, those who wait, and work in the background."""
