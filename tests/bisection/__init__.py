"""Search for the release that changed a result."""
