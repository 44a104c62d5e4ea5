"""Margins of planted defects over healthy tests: how far each is from being missed."""
