"""Text of messages and tables: quotes in one line, aligned columns, colours in a terminal."""
