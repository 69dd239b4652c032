"""Downstream evaluation of any checkpoint (`excb-eval`)."""
