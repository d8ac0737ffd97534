"""Corpora that Regard makes by itself: no download, any size, and the truth that attention is checked against."""
