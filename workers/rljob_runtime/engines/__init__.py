"""Engines that generate responses, by the names that a manifest uses."""
