"""Search: beam search, sampling and contrastive search for every model, over a step function and an opaque state."""
