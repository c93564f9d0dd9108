"""Documents for the page's views, computed from what a run has told so far.

| module | document |
|---|---|
| `curves` | columns of numbers by step, of `metrics.jsonl` |
| `curve_names` | how these columns are called, and in which charts they are |
| `occupancy` | how many trajectories a lane had over time, in a fixed number of buckets |
| `ledger_story` | the ledger's records, with the times at which they were stored, as lanes, marks and steps |
| `swaps` | when engines took new weights |
| `timeline` | a window of these |
| `buffers` | the staleness buffers now |
| `engines` | the engines now, and what they were seen to do |
"""
