"""The command line ``pulse``: push, pull, log, route, verify, inspect and demo, for people and for scripts."""

from pulse_registry.cli.app import main

__all__ = ["main"]
