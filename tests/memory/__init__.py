"""The checks of casts and of memory: their counts, and their messages."""
