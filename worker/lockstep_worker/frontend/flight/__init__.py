"""Requests in flight."""
