"""The command line ``pulse``: from push and pull to doctor and serve, for people and for scripts."""

from pulse_registry.cli.app import main

__all__ = ["main"]
