"""Support of a new release of torch: what it changes in this project's data, as one patch to review."""
