"""Prediction and evaluation of large inputs in tiles."""
