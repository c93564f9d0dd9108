"""A NATS installation's accounts, and the permissions and credentials of each role."""
