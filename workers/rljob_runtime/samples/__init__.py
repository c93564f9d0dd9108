"""Samples: answers with their tokens and scores, which reward workers keep for people to read.

| module | does |
|---|---|
| `keeping` | decides, without I/O, which groups are kept, how files are named, and which are deleted |
| `rows`, `columnar` | the format: one row of a Parquet file for each answer |
| `places` | a folder or a prefix of an object store, with whole files only |
| `log` | the writer: a thread beside the reward role that costs samples, and nothing else, if it fails |
| `report` | opens the writer, and tells the coordinator of samples that are lost |
| `index`, `trained` | what the reader knows of all answers: a few numbers each; and of what the trainer did with them |
| `stored`, `read` | the reader: pages of groups, filtered and sorted |
"""
