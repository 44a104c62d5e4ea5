"""Workflows: their permissions, their commands, and the scripts behind them."""
