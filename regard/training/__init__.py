"""Training: losses, optimiser and schedule, checkpoints, the loop."""
