"""Stores that wrap another one and add a single ability to it."""
