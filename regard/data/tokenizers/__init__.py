"""Kinds of tokenizer, and which one a vocabulary gets."""
