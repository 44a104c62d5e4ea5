"""Back ends that are not torch's own."""
