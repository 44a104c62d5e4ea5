"""The checks of casts and of memory: what they count, and what they say."""
