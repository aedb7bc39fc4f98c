"""Weights in memory: models, cells, their digest, and where each tensor lies in the flat cell space."""
