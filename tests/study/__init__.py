"""Studies: resumable, with out of memory as a result, and shown in tables and plots."""
