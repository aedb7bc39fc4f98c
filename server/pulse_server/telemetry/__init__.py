"""Telemetry for operators: metrics, log lines, and whether the store answers."""
