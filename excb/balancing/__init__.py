"""Ways to keep clusters from collapsing that are not ExCB's: none at all, DINO's, SwAV's and MIRA's, one file each.

ExCB's own B is in `excb.method`. All five answer one question, `Balancer.affine`: each changes the teacher's
similarities by one affine map per cluster before the softmax, so that one objective serves all (`excb.objective.loss`).
"""
