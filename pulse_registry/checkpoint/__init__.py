"""Folders that are a Hugging Face checkpoint of one version, brought from version to version."""

from pulse_registry.checkpoint.pull import CheckpointPull, pull_checkpoint

__all__ = ["CheckpointPull", "pull_checkpoint"]
