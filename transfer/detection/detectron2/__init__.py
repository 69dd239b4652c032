"""Detectron2 as an engine of the detection protocol."""
