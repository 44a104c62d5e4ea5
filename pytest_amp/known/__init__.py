"""Known faults: rows of a TOML file, with the tests or observations that show the fault, its reason and its report.

In goes a file: the one beside the suites, with the faults of torch, or a project's own (--amp-known). Out come the rows
that explain a failure on this device, dtype and release.
"""
