"""Programs for maintainers, none of which is in the wheel."""
