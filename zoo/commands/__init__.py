"""The commands of `excb-zoo`: a file each, with its options and what it runs; none loads torch before it runs."""
