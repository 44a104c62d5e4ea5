"""Makes the checkout's own packages importable, installed or not."""
