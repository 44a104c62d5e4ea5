"""Back ends outside of torch."""
