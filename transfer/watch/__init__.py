"""`excb-eval watch`: every new checkpoint of a run, evaluated on other labelled images while the run continues."""
