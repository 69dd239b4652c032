"""`excb-eval all`: every protocol that applies, with one report."""
