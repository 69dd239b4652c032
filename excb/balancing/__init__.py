"""Balancers other than ExCB's own B, one file each: none at all, DINO's centering, SwAV's Sinkhorn-Knopp, MIRA's.

B itself is in `excb.method`. All are listed in `excb.balancing.table` and answer one question, `Balancer.affine`: each
changes the teacher's similarities by one affine map per cluster before the softmax, so one loss serves all of them.
"""
