"""Imported last by the server of `tests.forked`: garbage collectors of its forks leave alone what is there by then."""

import gc

gc.collect()
gc.freeze()
