"""Heads that say which classes a patch has: its neighbours, a linear layer, a logistic regression."""
