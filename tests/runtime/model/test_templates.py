"""Templates are rendered as Jinja does, and one that never ends or grows costs an error."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import jinja2
import pytest

from rljob_runtime.model.templates import (
    LimitedTemplate,
    TemplateTooCostly,
    chat_environment,
    prompt_environment,
)

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = '{% set ns = namespace(s="x") %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}'


def children() -> set[str]:
    return {
        pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    }


def test_what_is_rendered_is_what_jinja_renders() -> None:
    variables = {"q": 'ü "\ud800', "items": [{"a": 1}, {"a": 2}]}
    for source in (
        "{{ q }}",
        "{{ items[0].a }}",
        "{% for one in items %}{{ one.a }}{{ q|upper }}{% endfor %}",
    ):
        for environment in (prompt_environment, chat_environment):
            expected = environment().from_string(source).render(variables)
            assert LimitedTemplate(environment, source).render(variables) == expected


@pytest.mark.parametrize(
    "source",
    [
        LOOP,
        DOUBLED,
        '{{ "x" * 2000000000 }}',
        '{{ "x"|center(2000000000) }}',
        "{{ 10 ** (10 ** 9) }}",
        '{{ "x" * 20000000 }}',
    ],
)
def test_what_never_ends_or_grows_is_ended(source: str) -> None:
    for environment in (prompt_environment, chat_environment):
        with pytest.raises(TemplateTooCostly):
            LimitedTemplate(environment, source, seconds=0).render({})
        assert LimitedTemplate(environment, "{{ q|upper }}").render({"q": "next"}) == "NEXT"


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("{{ q + ", jinja2.TemplateSyntaxError, "unexpected"),
        ("{{ nope|upper }}", jinja2.UndefinedError, "'nope' is undefined"),
        ("{{ 1 / 0 }}", jinja2.TemplateError, "division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", jinja2.TemplateError, "RecursionError"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", jinja2.TemplateError, "RecursionError"),
    ],
)
def test_errors_are_jinja_s(source: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        LimitedTemplate(prompt_environment, source).render({"q": 1})


def test_the_process_ends_with_the_last_template() -> None:
    gc.collect()  # a template that another test has left
    before = children()
    template = LimitedTemplate(prompt_environment, "{{ q|upper }}")
    template.render({"q": "a"})
    assert len(children() - before) == 1
    del template
    gc.collect()
    assert not children() - before


def test_a_process_that_is_forked_has_one_of_its_own() -> None:
    template = LimitedTemplate(prompt_environment, "{{ q|upper }}")
    assert template.render({"q": "a"}) == "A"
    before = children()
    if (child := os.fork()) == 0:
        right = template.render({"q": "b"}) == "B" and template._process is not None
        os._exit(0 if right and len(children()) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert template.render({"q": "c"}) == "C"
    assert children() == before
