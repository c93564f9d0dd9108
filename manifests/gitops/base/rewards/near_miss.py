"""A reward for arithmetic that also pays for answers near the right one."""


def near_miss(*, completion, item):
    """Between 0 and 0.5: the closer the answered number is to `item["answer"]`, the more; 0 for no number."""
    try:
        distance = abs(int(completion.strip()) - int(item["answer"]))
    except ValueError:
        return 0.0
    return 0.5 / (1 + distance)
