"""Everything that arXiv 2609.05676 measures, one script a table or figure; see README.md beside this package."""
