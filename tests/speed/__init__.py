"""The speed check's own tests, which need neither a device nor patience."""
