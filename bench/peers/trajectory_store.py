"""TransferQueue's side of `bench.store`: runs in the environment .venv-bench and prints its rounds as JSON.

Argument: JSON with `prompt`, `responses`, `kinds` ([batch size, rounds, rounds that warm up]) and `folder` for
Ray's files. Output, last line: rounds as [batch size, response, interface, [[put, get, 0, delete] seconds …]].

It has two interfaces: keys (`kv_batch_put`, `kv_batch_get`, `kv_clear`) and streams (`put`, `get_meta` with
`get_data`, `clear_samples`). Both are measured. All responses of a batch have one length, its best case.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
# One machine, its loopback interface, a few seconds: no token is left in the home folder.
os.environ["RAY_AUTH_MODE"] = "disabled"
# Seconds; Ray gives up after 60 where other programs compute, too.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")

import ray
import torch
import transfer_queue
from tensordict import TensorDict

PARTITION = "bench"
FIELDS = ["prompt", "response", "logprobs", "versions", "reward"]


def make_batch(size: int, prompt: int, response: int) -> TensorDict:
    """Five columns of `size` samples."""
    return TensorDict(
        {
            "prompt": torch.randint(0, 150_000, (size, prompt), dtype=torch.int32),
            "response": torch.randint(0, 150_000, (size, response), dtype=torch.int32),
            "logprobs": -torch.rand(size, response),
            "versions": torch.full((size, response), 7, dtype=torch.int32),
            "reward": torch.full((size,), 0.5),
        },
        batch_size=size,
    )


def by_keys(batch: TensorDict, number: int) -> list[float]:
    """Seconds of put, get and clear through keys."""
    keys = [f"{number}.{sample}" for sample in range(len(batch))]
    begun = time.perf_counter()
    transfer_queue.kv_batch_put(keys=keys, partition_id=PARTITION, fields=batch)
    stored = time.perf_counter()
    found = transfer_queue.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=FIELDS)
    read = time.perf_counter()
    transfer_queue.kv_clear(keys=keys, partition_id=PARTITION)
    done = time.perf_counter()
    check(batch, found)
    return [stored - begun, read - stored, 0.0, done - read]


def by_stream(batch: TensorDict, number: int) -> list[float]:
    """Seconds of put, get and clear through a stream of samples, as a consumer takes them."""
    client = transfer_queue.get_client()
    partition = f"{PARTITION}-{number}"
    begun = time.perf_counter()
    client.put(data=batch, partition_id=partition)
    stored = time.perf_counter()
    meta = client.get_meta(
        data_fields=FIELDS, batch_size=len(batch), partition_id=partition, task_name="train"
    )
    found = client.get_data(meta)
    read = time.perf_counter()
    client.clear_samples(meta)
    done = time.perf_counter()
    check(batch, found)
    return [stored - begun, read - stored, 0.0, done - read]


def check(batch: TensorDict, found: Any) -> None:
    """Raise RuntimeError unless the responses that came back are those that were put."""
    if not torch.equal(torch.stack(list(found["response"].unbind())), batch["response"]):
        raise RuntimeError("TransferQueue returned something else")


def main() -> None:
    """Run all rounds."""
    asked = json.loads(sys.argv[1])
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, _temp_dir=asked["folder"])
    transfer_queue.init()
    rows = []
    number = 0
    for size, rounds, warm in asked["kinds"]:
        for response in asked["responses"]:
            for name, interface in (("keys", by_keys), ("stream", by_stream)):
                times = []
                for _ in range(rounds):
                    batch = make_batch(size, asked["prompt"], response)
                    number += 1
                    times.append(interface(batch, number))
                rows.append([size, response, name, times[warm:]])
    transfer_queue.close()
    ray.shutdown()
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
