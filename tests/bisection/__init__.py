"""The search for the release that changed something."""
