"""Reading of the package's data files: TOML, and bounds that are releases of torch."""
