"""Fits JAX training steps into memory, and proves it with the XLA compiler."""
