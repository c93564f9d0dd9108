"""The ValidatingAdmissionPolicy for RLJobs: `decisions.named_by_jobs` as expressions that the API server evaluates.

Of each kind of name there are three variables: what is allowed (`secrets`), what the job names (`secretsNamed`), and
what of it is not allowed (`secretsRefused`), which the validation wants to be empty. `secretsNamed` walks through the
spec as `job_mentions` does. CEL has no functions and cannot flatten lists, so each level of the walk gives text: a line
for each name, `path name`. A name with a line end in it counts as two; no name of Kubernetes has one.

What a policy may cost is limited at run time, not by an estimate: the sizes of a spec need no bounds here, and a spec
that is too expensive to check is refused.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.job_rules import CONFIG_MAP, LONGEST, SHOWN, WORDS
from rljob_operator.decisions.named_by_jobs import POD_TEMPLATE, SPEC
from rljob_operator.decisions.named_fields import (
    TOO_DEEP,
    Fields,
    Free,
    Items,
    Keys,
    MentionKind,
    Named,
    Node,
    Only,
    StorageUri,
    Urls,
)

NAME = "rljob-jobs"
_NOTHING = '""'
_RESERVED = frozenset({"namespace"})
"""Words of CEL, which names no field by them after a dot."""


def job_policy() -> Manifest:
    """The policy's manifest; its parameter is the ConfigMap of rules."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "rljob"}},
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["rljob.dev"],
                        "apiVersions": ["*"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["rljobs"],
                    }
                ]
            },
            # Metadata, finalizers among them, can always change; and whatever a job names, it can be suspended.
            "matchConditions": [
                {
                    "name": "new-or-changed-and-not-suspended",
                    "expression": 'request.operation == "CREATE" || '
                    "(object.metadata.generation != oldObject.metadata.generation && "
                    "!(has(object.spec.suspend) && object.spec.suspend))",
                },
            ],
            "variables": [
                {"name": "templates", "expression": _templates()},
                *(variable for kind in MentionKind for variable in _variables(kind)),
            ],
            "validations": [_validation(kind) for kind in MentionKind],
        },
    }


def _variables(kind: MentionKind) -> list[Manifest]:
    lines = f'params.?data[?(request.namespace + ".{kind}")].orValue(params.?data.?{kind}.orValue(""))'
    name = "line.substring(line.indexOf(" + (
        '".template.") + 10)' if kind is MentionKind.POD_TEMPLATE_FIELDS else '" ") + 1)'
    )
    begins = f'variables.{kind}.exists(p, p.endsWith("*") && {name}.startsWith(p.substring(0, size(p) - 1)))'
    in_spec = _named(kind, SPEC, "object.spec", _Path("spec"), 0)
    in_template = _named(kind, POD_TEMPLATE, "t.of", _Path("", "t.at"), 0)
    named = [
        text
        for text in (in_spec, in_template and f'variables.templates.map(t, {in_template}).join("\\n")')
        if text
    ]
    return [
        {
            "name": kind.value,
            "expression": f'{lines}.split("\\n").map(line, line.trim())\n'
            '  .filter(line, line != "" && !line.startsWith("#"))',
        },
        {"name": f"{kind}Named", "expression": _lines(named)},
        {
            "name": f"{kind}Refused",
            "expression": f'variables.{kind}Named.split("\\n").filter(line, line != "" &&\n'
            f"  !({name} in variables.{kind} || {begins}))",
        },
    ]


def _validation(kind: MentionKind) -> Manifest:
    begin = f'"RLJobs in namespace " + request.namespace + " may not {WORDS[kind]}: "'
    refused = _some(f"variables.{kind}Refused")
    allowed = f'(size(variables.{kind}) == 0 ? "none" : {_some(f"variables.{kind}")})'
    end = f'"; ask who runs rljob here, or add a line to {kind} of ConfigMap {CONFIG_MAP})"'
    return {
        "expression": f"size(variables.{kind}Refused) == 0",
        "messageExpression": f'{begin} + {refused} + " (allowed: " + {allowed} + {end}',
        # Shown where the other one has more than 5 KB.
        "message": f"RLJobs may not {WORDS[kind]}: the line {kind} of ConfigMap {CONFIG_MAP} says which they may",
        "reason": "Forbidden",
    }


def _some(texts: str) -> str:
    """The expression of the first texts of a list, as `job_rules` shows them."""
    text = f"{texts}[i]"
    short = f'size({text}) > {LONGEST} ? {text}.substring(0, {LONGEST}) + "..." : {text}'
    more = f'(size({texts}) > {SHOWN} ? " and " + string(size({texts}) - {SHOWN}) + " more" : "")'
    return f'{list(range(SHOWN))}.filter(i, i < size({texts})).map(i, {short}).join(", ") + {more}'


# ---------------------------------------------------------------------------------------------- the walk


@dataclass(frozen=True, slots=True)
class _Path:
    """An expression of a value's path: that of a variable, and the rest of it as text."""

    rest: str
    begin: str = ""

    def field(self, name: str) -> _Path:
        return _Path(f"{self.rest}.{name}", self.begin)

    def variable_field(self, variable: str) -> _Path:
        return _Path("", f"{self.followed_by('.')} + {variable}")

    def followed_by(self, text: str) -> str:
        """The expression of the path and some text."""
        rest = self.rest + text
        if not self.begin:
            return json.dumps(rest)
        return f"{self.begin} + {json.dumps(rest)}" if rest else self.begin


def _templates() -> str:
    """The expression of all pod templates of a job, each with its path."""
    parts = []
    for path in _paths_to(POD_TEMPLATE, SPEC, ()):
        at = json.dumps(".".join(("spec", *path)).replace("[]", ""))
        where, found, inner = "object.spec", "", path
        if "[]" in path[-2]:
            # The list is a required field, as is what it is in.
            where, found, inner = "x", ".".join(("object.spec", *path[:-1])).replace("[]", ""), path[-1:]
        there = " && ".join(f"has({'.'.join((where, *inner[: i + 1]))})" for i in range(len(inner)))
        of = f'{{"at": dyn({at}), "of": {".".join((where, *inner))}}}'
        parts.append(f"{found}.filter(x, {there}).map(x, {of})" if found else f"({there} ? [{of}] : [])")
    return " +\n".join(parts)


def _paths_to(wanted: Node, node: Node, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if node is wanted:
        yield path
    elif isinstance(node, Items):
        yield from _paths_to(wanted, node.item, (*path[:-1], f"{path[-1]}[]"))
    elif isinstance(node, Fields):
        for field, inner in node.fields.items():
            yield from _paths_to(wanted, inner, (*path, field))


def _named(kind: MentionKind, node: Node, value: str, path: _Path, depth: int) -> str | None:
    """The expression of what a value names, as lines; None if that is nothing of this kind, whatever the value.

    Args:
        value: an expression.
        depth: of macros around it, whose variables must have other names.
    """
    match node:
        case Free():
            return None
        case Fields() if node is POD_TEMPLATE and value != "t.of":
            return None  # by `variables.templates`, once for all
        case Only(values=values) if kind is MentionKind.POD_TEMPLATE_FIELDS:
            return f"({value} in {json.dumps(values)} ? {_NOTHING} : {path.followed_by('')})"
        case Only():
            return None
        case Urls(depth=levels, claims=claims):
            wanted = kind is MentionKind.SERVERS or (claims and kind is MentionKind.CLAIMS)
            return _in_options(kind, value, path, levels) if wanted else None
    inside = _inside(kind, node, value, path, depth)
    wrong = _NOTHING
    if kind is MentionKind.POD_TEMPLATE_FIELDS and path.begin and path.followed_by("") != "t.at":
        wrong = path.followed_by("")
    elif inside is None:
        return None
    return f"(type({value}) == {_type(node)} ? {inside or _NOTHING} : {wrong})"


def _inside(kind: MentionKind, node: Node, value: str, path: _Path, depth: int) -> str | None:
    """CEL text that lists the mentions in a value that has the node's type; None if there can be none."""
    match node:
        case Named(separator="") if node.kind is kind:
            return f"{path.followed_by(' ')} + {value}"
        case Named(separator=separator) if node.kind is kind:
            return f'{value}.split("{separator}").map(x, {path.followed_by(" ")} + x).join("\\n")'
        case StorageUri() if kind is MentionKind.CLAIMS:
            return f'({value}.startsWith("pvc://") ? {path.followed_by(" ")} + {value}.split("/")[2] : {_NOTHING})'
        case StorageUri() if kind is MentionKind.SERVERS:
            far = (
                f'{value}.contains("://") && !{value}.startsWith("pvc://") && !{value}.startsWith("file://")'
            )
            return f"({far} ? {path.followed_by(' ')} + {value} : {_NOTHING})"
        case Keys() if node.kind is kind:
            return f'{value}.map(x, {path.followed_by(" ")} + x).join("\\n")'
        case Items(item=item):
            element = f"x{depth}"
            inner = _named(kind, item, element, path, depth + 1)
            return inner and f'{value}.map({element}, {inner}).join("\\n")'
        case Fields():
            return _in_fields(kind, node, value, path, depth)
    return None


def _in_fields(kind: MentionKind, node: Fields, value: str, path: _Path, depth: int) -> str | None:
    parts: list[str] = []
    for fields, inner in _alike(kind, node.fields):
        if len(fields) > 1 and node.template:
            name = f"f{depth}"
            text = _named(kind, inner, f"{value}[{name}]", path.variable_field(name), depth + 1)
            if text:
                parts.append(
                    f'{json.dumps(fields)}.filter({name}, {name} in {value}).map({name}, {text}).join("\\n")'
                )
            continue
        for field in fields:
            at = f"{value}.{field}"
            there = f"has({at})"
            if field in _RESERVED:
                at, there = f"{value}[{json.dumps(field)}]", f"{json.dumps(field)} in {value}"
            text = _named(kind, inner, at, path.field(field), depth)
            absent = _NOTHING
            if isinstance(inner, Named) and inner.kind is kind and inner.absent:
                absent = path.field(field).followed_by(f" {inner.absent}")
            if text:
                parts.append(f"({there} ? {text} : {absent})")
    if node.template and kind is MentionKind.POD_TEMPLATE_FIELDS:
        known = json.dumps(list(node.fields))
        parts.append(f'{value}.filter(x, !(x in {known})).map(x, {path.followed_by(".")} + x).join("\\n")')
    return _lines(parts) if parts else None


def _alike(kind: MentionKind, fields: Mapping[str, Node]) -> list[tuple[list[str], Node]]:
    """Fields with the same node together; for the kind of fields themselves, all strings are the same."""
    found: list[tuple[list[str], Node]] = []
    for field, node in fields.items():
        for names, other in found:
            strings = isinstance(node, Named) and isinstance(other, Named)
            if node == other or (strings and kind is MentionKind.POD_TEMPLATE_FIELDS):
                names.append(field)
                break
        else:
            found.append(([field], node))
    return found


def _in_options(kind: MentionKind, value: str, path: _Path, depth: int) -> str:
    one, named = f"{path.followed_by(' ')} + {value}", f'{value}.startsWith("pvc://")'
    in_list = in_map = path.followed_by(f" {TOO_DEEP}")  # a server and a claim, whatever it is
    if kind is MentionKind.CLAIMS:
        one = f'{one}.split("/")[2]'
    else:
        named = f'({value}.startsWith("http://") || {value}.startsWith("https://"))'
    if depth:
        item, key = f"item{depth}", f"key{depth}"
        in_list = f'{value}.map({item}, {_in_options(kind, item, path, depth - 1)}).join("\\n")'
        in_map = f'{value}.map({key}, {_in_options(kind, f"{value}[{key}]", path, depth - 1)}).join("\\n")'
    return (
        f"(type({value}) == string ? ({named} ? {one} : {_NOTHING}) : type({value}) == list ? {in_list} : "
        f"type({value}) == map ? {in_map} : {_NOTHING})"
    )


def _type(node: Node) -> str:
    return "list" if isinstance(node, Items) else "map" if isinstance(node, Fields | Keys) else "string"


def _lines(texts: Sequence[str]) -> str:
    """The expression of the lines of several expressions."""
    if len(texts) == 1:
        return texts[0]
    inside = textwrap.indent(",\n".join(texts), "  ")
    return f'[\n{inside}\n].join("\\n")'
