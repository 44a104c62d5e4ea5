"""Suites that users run: one folder for each family of checks; see README.md in this folder."""
