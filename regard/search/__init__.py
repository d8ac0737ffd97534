"""Search: one beam search and one sampler for every model, over a step function and an opaque state."""
