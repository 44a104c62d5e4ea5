"""Tests that run the documentation."""
