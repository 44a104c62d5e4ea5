"""Studies: long, resumable measurements of one question, with tables and plots. The first is of transformers."""
