"""What operators see: metrics, log lines, and whether the store answers."""
