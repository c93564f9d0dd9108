"""Policy-gradient losses over tokens, as sums that are divided once, at the end of a step.

For a token with advantage A, log-probability log π under the weights in training and log μ under the weights that
produced it (recorded by the engine), a loss is a function of A and of the ratio r = π/μ at the start of the step:

| `spec.algorithm.loss` | loss of a token | weight of a token | divisor of the step | |
|---|---|---|---|---|
| `GRPO` | −min(r·A, clip(r)·A) | 1 / tokens of its sequence | sequences | arXiv 2402.03300, eq. 3 |
| `DrGRPO` | the same | 1 | sequences · maxTokens | arXiv 2503.20783 |
| `DAPO` | the same | 1 | tokens of all sequences | arXiv 2503.14476, eq. 8 |
| `GSPO` | the same, r = (Π π/μ over its sequence)^(1 / tokens) | as GRPO | sequences | arXiv 2507.18071, eq. 5 and 7 |
| `CISPO` | −min(r, 1 + clipHigh)·A·log π | 1 | tokens of all sequences | arXiv 2506.13585, eq. 4 and 5 |

To each is added kl · KL, where KL = exp(log π_ref − log π) − (log π_ref − log π) − 1 is the k3 estimator of the
divergence from the frozen reference model (arXiv 2402.03300, eq. 4).

*Why the ratio is to the behaviour policy.* The trainer takes one optimizer step per batch. A ratio to the policy at
the start of the step would always be 1, and clipping it could never act; in the papers' objectives the old policy is
the one that sampled, which is the behaviour policy here. So the trainer needs no forward for old log-probabilities,
whatever the staleness: the engine's log-probabilities are the old ones. On fresh data r = 1, which is the plain policy
gradient.

Log-probabilities are those of the tempered distribution softmax(logits / temperature) that samples come from.

To add a loss: define a `Loss` in a module here, name it in `registry`, and list it in `docs/training.md`. The tests of
the contract take it from the registry. Modules here use methods of tensors instead of importing torch, so that
`rljob validate` can look up a name without loading it.
"""
