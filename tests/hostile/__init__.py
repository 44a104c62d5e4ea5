"""Unusual projects and hostile environments."""
