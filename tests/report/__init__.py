"""Reports: pages, plots, reasons, histories."""
