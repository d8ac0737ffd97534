"""From files to batches: examples, tokens, stores on disk, packed batches."""
