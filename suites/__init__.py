"""What a user runs: one folder a family of checks; see README.md beside this file."""
