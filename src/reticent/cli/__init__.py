"""The command line: parsing and printing, no mathematics."""
