"""Update of the file of fingerprints, and the tables of docs/reference/fingerprint.md."""
