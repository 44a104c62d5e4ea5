"""Known faults: rows of a TOML file, with the tests or observations that show the fault, its reason and its report.

The input is a file: ``suites/known.toml``, with the faults of torch, or a project's own (--amp-known). The output are
the rows that explain a failure on this device, dtype and release.
"""
