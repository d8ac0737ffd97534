"""Several models on the same data under the same budget: run, measured, drawn and described."""
