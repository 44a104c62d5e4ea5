"""Tests of amp.check: its report, its failure, harm, and its messages for mistakes in models and loops."""
