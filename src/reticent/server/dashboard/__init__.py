"""The operator's page: what was spent, what is left, and what that bounds."""
