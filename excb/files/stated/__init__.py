"""Sizes and places that files state, looked at before a library reads them."""
