"""Results of evaluations: the record, its file and the rules for untrusted files."""
