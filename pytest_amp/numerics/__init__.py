"""How far mixed precision is from what it should compute: error metrics, a reference, tolerances, checks."""
