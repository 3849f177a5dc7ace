"""Tests of jaxckpt.testing."""
