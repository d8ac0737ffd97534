"""Layouts that pictures, recordings and their texts come in, one file each."""
