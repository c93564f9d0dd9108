"""Folders and object stores, with the errors that the rest of the workers knows."""
