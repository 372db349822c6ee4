"""Ways to adapt one language model, one file each, behind one registry."""
