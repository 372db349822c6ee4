"""PrivAuditor's grid: models, data sets, techniques and attacks, cell by cell."""
