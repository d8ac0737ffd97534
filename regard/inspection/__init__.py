"""A model laid open: what it weighed up at each token, its beam as a tree, what it would write otherwise."""
