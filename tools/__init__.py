"""Programs for maintainers: none of it is in the wheel."""
