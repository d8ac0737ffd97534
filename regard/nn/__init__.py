"""Layers: attention and its scores, positions, recurrence, blocks."""
