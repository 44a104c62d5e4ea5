"""Models of other libraries, and small models of common kinds, on which every check of ``amp`` must agree.

``registry.MODELS`` is the table; ``make real-models`` installs the libraries and runs the checks over it.
"""
