"""Record: keys, files, comparison. Neither torch nor pytest runs here."""
