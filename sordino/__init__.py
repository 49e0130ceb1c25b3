"""Sordino trains models on private data under differential privacy and proves what it spent."""

__version__ = "0.1.0"
