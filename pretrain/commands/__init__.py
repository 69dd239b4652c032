"""The commands of `excb-pretrain`: a file each, with its options and what it runs; none loads torch before it runs."""
