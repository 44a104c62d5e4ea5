"""Studies: long measurements of one question, resumable, with tables and plots. The first is of transformers."""
