"""What the documentation says and shows, run."""
