"""The speed check's own tests: no device and no patience needed."""
