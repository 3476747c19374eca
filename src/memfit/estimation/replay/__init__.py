"""Replaying recorded allocations at any batch size and in any memory."""
