"""Programs that measure and write tables of the pages in docs/, one module for each table or page."""
