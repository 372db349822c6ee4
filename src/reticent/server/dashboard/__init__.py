"""The web pages: the operator's dashboard (what was spent, what is left, what that bounds) and the page to try."""
