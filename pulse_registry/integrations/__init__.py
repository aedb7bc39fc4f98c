"""Bridges to trainers: how a framework's own description of a sharded model becomes slices, and back."""
