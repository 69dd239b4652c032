"""`excb-eval reproduce`: do published figures hold?"""
