"""Versions of the policy's weights: one store (manifests, digests, deltas) over exchangeable transports."""
