"""Kinds of target, one file each: numbers, loss, decoding, scores."""
