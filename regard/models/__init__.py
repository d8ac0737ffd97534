"""Encoders, decoders, and models made of them."""
