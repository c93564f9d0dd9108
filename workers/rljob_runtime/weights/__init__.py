"""Versions of the policy's weights: one store with manifests, digests and deltas, over exchangeable transports.

Open a store with `rljob_runtime.weights.create.open_store`; `rljob_runtime.weights.store` says how the modules divide
the work. `rljob_core.weight_transports` lists the transports and says how to add one.
"""
