"""Where images come from: what `--data` names, tables of labels, and data sets that a name stands for."""
