"""From contexts to released tokens: candidates, public coins, votes and the token loop."""
