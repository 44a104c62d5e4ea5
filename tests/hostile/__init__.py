"""Odd projects and unkind surroundings."""
