"""Tests of names and scopes."""
