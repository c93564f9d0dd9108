"""`rljob explain`: what a field of the API is, without a cluster."""
