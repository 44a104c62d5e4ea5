"""Tests of the distributions, and of their use without a checkout."""
