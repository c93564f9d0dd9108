"""The output folder of a run: its layout, its `job.json`, and its streams with the server that has them."""
