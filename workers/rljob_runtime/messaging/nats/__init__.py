"""The message store on NATS JetStream, and the `nats-server` that local runs and tests start."""
