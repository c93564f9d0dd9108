"""An agent that has a model solve a sum (agent.yaml): it knows nothing of rljob, except for the score that it sends.

Any program that uses OpenAI's chat completions can stand here: the variables OPENAI_BASE_URL and OPENAI_API_KEY lead
its client to the model that is trained. The model may call two tools. A wrong answer gets a hint and may be given
again, twice.
"""

from __future__ import annotations

import json
import operator
import os
import re
import sys
from typing import Any

from openai import BadRequestError, OpenAI

OPERATORS = {"+": operator.add, "-": operator.sub}


def calculate(expression: str) -> str:
    """Add and subtract whole numbers, as in `12-3+4`."""
    total, sign = 0, "+"
    for part in re.findall(r"\d+|[+-]", expression):
        if part in OPERATORS:
            sign = part
        else:
            total = OPERATORS[sign](total, int(part))
    return str(total)


def compare(guess: str, expression: str) -> str:
    """Say whether the value of an expression is higher than a guess (`+`), lower (`-`), or equal (`=`)."""
    difference = int(calculate(expression)) - int(guess)
    return "=" if difference == 0 else "+" if difference > 0 else "-"


def schema(tool: Any, *parameters: str) -> Any:
    """What the model is told of a tool."""
    properties = {name: {"type": "string"} for name in parameters}
    function = {
        "name": tool.__name__,
        "description": tool.__doc__,
        "parameters": {"type": "object", "properties": properties},
    }
    return {"type": "function", "function": function}


TOOLS = {"calculate": calculate, "compare": compare}
SCHEMAS = [schema(calculate, "expression"), schema(compare, "guess", "expression")]


def call(name: str, arguments: str) -> str:
    """What a tool returns."""
    try:
        return TOOLS[name](**json.loads(arguments))
    except (KeyError, TypeError, ValueError) as error:  # models call tools in any way
        return f"error: {error!r}"


def solve(client: OpenAI, question: str) -> float:
    """The worth of the model's answer: 1, then half as much for each wrong one before it."""
    messages: list[Any] = [{"role": "user", "content": question}]
    worth = 1.0
    for _ in range(3):
        answer = (
            client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, tools=SCHEMAS)
            .choices[0]
            .message
        )
        messages.append(answer)
        if answer.tool_calls:
            for asked in answer.tool_calls:
                result = call(asked.function.name, asked.function.arguments)
                messages.append({"role": "tool", "tool_call_id": asked.id, "content": result})
            continue
        said = (answer.content or "").strip()
        hint = compare(said, question) if re.fullmatch(r"-?\d+", said) else ""
        if hint == "=":
            return worth
        worth /= 2
        messages.append({"role": "user", "content": hint + question})
    return 0.0


if __name__ == "__main__":
    openai = OpenAI()
    try:
        score = solve(openai, sys.argv[1])
    except BadRequestError as error:  # the episode has no tokens left
        sys.stderr.write(f"no answer: {error}\n")
        score = 0.0
    openai.post("/score", body={"score": score}, cast_to=object)
