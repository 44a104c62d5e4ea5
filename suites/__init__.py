"""Suites that users run: one folder for each family of checks; see README.md beside this file."""
