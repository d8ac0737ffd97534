"""Kinds of source, one file each: all that anyone needs to know of them."""
