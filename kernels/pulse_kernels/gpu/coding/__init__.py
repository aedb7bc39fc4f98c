"""Coding of changes on the device: the same bytes as the CPU's, encoded and decoded by the tile."""
