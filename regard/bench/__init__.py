"""Regard and its peers side by side, in one process, turn by turn."""
