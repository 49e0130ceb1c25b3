"""Choosing with the cost of privacy in mind: architectures, features, settings, and ε itself."""
