"""Known faults: of torch, from the suites' data, and those that a project accepts, from a file of its own."""
