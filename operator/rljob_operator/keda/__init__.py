"""KEDA's external-scaler protocol (gRPC): KEDA asks how many engines a RolloutPool should have."""
