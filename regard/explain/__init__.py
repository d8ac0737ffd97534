"""What a model attended to: one trace format, pictures, a page."""
