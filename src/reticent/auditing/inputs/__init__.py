"""Inputs that attacks need: signals, neighbours, gradients, shadow models, prefixes, and who is a member."""
