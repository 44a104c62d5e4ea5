"""Support of a new release of torch: the changes of this project's data, as one patch to review."""
