"""The robustness protocol: one head, trained on clean images, judged on corrupted ones and on other test sets."""
