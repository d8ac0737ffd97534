"""A task is data, a model, a loss, a search and scores: writing text, or filling in its blanks."""
