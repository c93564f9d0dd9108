"""The CustomResourceDefinitions, made from the API models."""
