"""Models at work behind HTTP: an engine that batches continuously, workers, protocols, a page."""
