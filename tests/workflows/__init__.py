"""The workflows: what they may do, what they run, and the scripts behind them."""
