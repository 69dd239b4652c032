"""Pretraining: recipes, views, the loop and its journal (`excb-pretrain`)."""
