"""Scores with signatures, and attention held against gold alignments."""
