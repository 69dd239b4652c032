"""ImageNet-C's corruptions, written anew: the results of its authors' code on the same random draws."""
