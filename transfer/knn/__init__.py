"""The k-NN protocol."""
