"""The CRDs: what the API server would store and refuse is what the models say."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from example_job import write_model
from pydantic import BaseModel, Field
from ruamel.yaml import YAML
from typer.testing import CliRunner

from rljob_cli.commands import app
from rljob_cli.generate.commands import HEADER, files
from rljob_cli.generated_files import as_yaml
from rljob_cli.manifest.differences import IMMUTABLE_ON_RESUME
from rljob_core.spec import ApiModel, RLJob, RLJobStatus, RolloutPool, Rule, Site
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import rollout_pool
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.crd.definitions import crds
from rljob_operator.crd.schema import structural

REPOSITORY = Path(__file__).parents[2]
RULES = "x-kubernetes-validations"
FREE_FORM = "x-kubernetes-preserve-unknown-fields"
MODELS: dict[str, type[ApiModel]] = {
    "rljobs.yaml": RLJob,
    "rolloutpools.yaml": RolloutPool,
    "sites.yaml": Site,
}

Schema = dict[str, Any]
MakeJob = Callable[..., RLJob]

MINIMAL: dict[str, Any] = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "sums"},
    "spec": {
        "steps": 4,
        "model": {"uri": "/models/tiny"},
        "data": {"dataset": "chain_sum"},
        "rollout": {"pools": [{"name": "cpu"}]},
    },
}


def laid(base: Any, changes: Any) -> Any:
    """`changes` laid over `base`."""
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return copy.deepcopy(changes)
    return {**base, **{name: laid(base.get(name), value) for name, value in changes.items()}}


def schema_of(file: str) -> Schema:
    (version,) = crds()[file]["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]
    return found


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema below, with its path: `spec.rollout.pools[].name`."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}" if path else name)
    for keyword, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if keyword in schema:
            yield from nodes(schema[keyword], f"{path}{mark}")


# ------------------------------------------------------------------------------------------------- the files


def test_the_files_are_up_to_date() -> None:
    result = CliRunner().invoke(app, ["crd", "--check", "--output", str(REPOSITORY / "crds")])
    assert result.exit_code == 0, result.output


def test_check_names_what_drifted(tmp_path: Path) -> None:
    folder = str(tmp_path / "crds")
    assert CliRunner().invoke(app, ["crd", "--output", folder]).exit_code == 0
    assert CliRunner().invoke(app, ["crd", "--output", folder, "--check"]).exit_code == 0
    file = tmp_path / "crds" / "rolloutpools.yaml"
    text = file.read_text()
    file.write_text(text.replace("labelSelectorPath: .status.selector", "labelSelectorPath: .status.labels"))
    (tmp_path / "crds" / "rljobs.yaml").unlink()
    result = CliRunner().invoke(app, ["crd", "--output", folder, "--check"])
    assert result.exit_code == 1
    missing, drifted, advice = result.stderr.splitlines()
    assert missing.startswith(f"error: {folder}/rljobs.yaml: cannot be read: ")
    assert drifted.startswith(f"error: {file}: spec.versions: ")
    assert advice == "to write them again: make crds"
    file.write_text(f"{text}# by hand\n")
    assert CliRunner().invoke(app, ["crd", "--output", folder, "--check"]).exit_code == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "crds").touch()
    result = CliRunner().invoke(app, ["crd", "--output", str(tmp_path / "crds")])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --output: ")


@pytest.mark.parametrize("file", files())
@pytest.mark.parametrize("version", [(1, 1), (1, 2)])
def test_every_yaml_reader_reads_the_same(file: str, version: tuple[int, int]) -> None:
    # Kubernetes' reader is of YAML 1.1, where `no` is false and 1e-06 is text.
    yaml = YAML(typ="safe", pure=True)
    yaml.version = version
    assert yaml.load(as_yaml(files()[file], HEADER)) == files()[file]


@pytest.mark.parametrize("file", MODELS)
def test_small_enough_for_client_side_apply(file: str) -> None:
    # It keeps a copy in an annotation; all annotations together may have 262,144 bytes.
    assert len(json.dumps(crds()[file])) < 131_072


def test_names_and_subresources() -> None:
    jobs, pools, sites = (crds()[file]["spec"] for file in MODELS)
    assert jobs["names"]["shortNames"] == ["rlj"]
    assert pools["names"]["shortNames"] == ["rlpool"]
    assert sites["names"]["shortNames"] == ["rlsite"]
    assert [kind["scope"] for kind in (jobs, pools, sites)] == ["Namespaced", "Namespaced", "Cluster"]
    assert "all" not in sites["names"]["categories"]  # `kubectl get all` is about a namespace
    assert jobs["versions"][0]["subresources"] == {"status": {}}
    assert sites["versions"][0]["subresources"] == {"status": {}}
    assert pools["versions"][0]["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    for file, manifest in crds().items():
        names = manifest["spec"]["names"]
        assert manifest["metadata"]["name"] == f"{names['plural']}.{manifest['spec']['group']}"
        # kubectl takes a category before a resource of that name.
        assert not set(names["categories"]) & {names["singular"], names["plural"], *names["shortNames"]}
        known = {f".{path}" for path, _ in nodes(schema_of(file))}
        columns = manifest["spec"]["versions"][0]["additionalPrinterColumns"]
        paths = [column["jsonPath"] for column in columns]
        paths += manifest["spec"]["versions"][0]["subresources"].get("scale", {}).values()
        fields = {path for path in paths if not path.startswith((".metadata.", ".status.conditions["))}
        assert fields <= known


# ------------------------------------------------------------------------------------------------- structure

_KEYWORDS = {
    "type", "description", "default", "nullable", "format", "enum", "pattern", "minLength", "maxLength", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "minProperties",
    "maxProperties", "required", "properties", "additionalProperties", "items", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys", "x-kubernetes-int-or-string", FREE_FORM, RULES,
}  # fmt: skip
_REASONS = {"FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired", "FieldValueDuplicate"}


def violations(schema: Schema) -> list[str]:
    """What of a schema the API server would refuse, or call non-structural."""
    found = [] if schema.get("type") == "object" else ["the root is no object"]
    found += [f"{path}: {text}" for path, node in nodes(schema) for text in _wrong(node)]
    # A list without keys has no item that an old one could be found for.
    found += [
        f"{path}: oldSelf below a list without keys"
        for above, node in nodes(schema)
        if node.get("type") == "array" and node.get("x-kubernetes-list-type") != "map"
        for path, below in nodes(node.get("items", {}), above)
        if any("oldSelf" in rule["rule"] for rule in below.get(RULES, ()))
    ]
    return found


def _wrong(node: Schema) -> Iterator[str]:
    if unknown := node.keys() - _KEYWORDS:
        yield f"unknown: {', '.join(sorted(unknown))}"
    kind = node.get("type")
    untyped = kind is None and (node.get(FREE_FORM) or node.get("x-kubernetes-int-or-string"))
    if not untyped and kind not in {"object", "array", "string", "integer", "number", "boolean"}:
        yield f"type {kind}"
    if ("items" in node) != (kind == "array"):
        yield "items and type array belong together"
    fieldless = kind == "object" and not node.keys() & {"properties", "additionalProperties", FREE_FORM}
    if fieldless and node != {"type": "object"}:  # which the root's metadata is
        yield "an object without fields"
    if {"properties", "additionalProperties"} <= node.keys():
        yield "properties exclude additionalProperties"
    for bound in ("Minimum", "Maximum"):
        exclusive = node.get(f"exclusive{bound}", False)
        if not isinstance(exclusive, bool) or (exclusive and bound.lower() not in node):
            yield f"exclusive{bound} must be a boolean beside {bound.lower()}"
    if "enum" in node and node.get("nullable"):
        yield "null is in no enum, not even in one that has it"
    if missing := set(node.get("required", ())) - node.get("properties", {}).keys():
        yield f"required but unknown: {missing}"
    if node.get("x-kubernetes-list-type") == "map":
        keys = set(node.get("x-kubernetes-list-map-keys", ()))
        if not keys or not keys <= set(node["items"].get("required", ())):
            yield "keys of a map-like list must be required"
    if "default" in node and (node["default"] is None or not _fits(node["default"], node)):
        yield "default does not fit"
    for rule in node.get(RULES, ()):
        if not rule["rule"] or not rule["message"] or "\n" in rule["message"]:
            yield "a rule needs an expression, and a message of one line"
        at: dict[str, Any] | None = node
        for name in filter(None, rule.get("fieldPath", ".").split(".")):
            at = None if at is None else at.get("properties", {}).get(name)
        if at is None:
            yield f"no such field: {rule['fieldPath']}"
        if rule.get("reason", "FieldValueInvalid") not in _REASONS:
            yield f"no such reason: {rule['reason']}"


def _fits(value: Any, schema: Schema) -> bool:
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "integer": int,
        "number": (int, float),
    }
    if not isinstance(value, kinds[schema["type"]]):
        return False
    if isinstance(value, dict) and "properties" in schema:
        fields = schema["properties"]
        return all(name in fields and _fits(below, fields[name]) for name, below in value.items())
    return "enum" not in schema or value in schema["enum"]


@pytest.mark.parametrize("file", MODELS)
def test_structural(file: str) -> None:
    assert violations(schema_of(file)) == []


@pytest.mark.parametrize(
    "field",
    [
        {"$ref": "#/$defs/X"},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"type": "string", "const": "a"},
        {"type": "string", "title": "A"},
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "number", "exclusiveMinimum": True},
        {"type": "null"},
        {"type": "string", "enum": ["a"], "nullable": True},
        {"type": "array"},
        {"type": "object", "description": "Nothing."},
        {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
        {"type": "integer", "default": None},
        {"type": "integer", "default": "1"},
        {"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object", "properties": {}}},
        {"type": "array", "items": {"type": "string", RULES: [{"rule": "self == oldSelf", "message": "no"}]}},
    ],
)
def test_the_checker_finds_what_is_not(field: Schema) -> None:
    assert violations({"type": "object", "properties": {"field": field}}) != []


@pytest.mark.parametrize("file", MODELS)
def test_every_field_is_described_in_a_line_or_two(file: str) -> None:
    for path, node in nodes(schema_of(file)):
        if path and path != "metadata" and not path.endswith(("[]", ".*")):
            assert 3 < len(node.get("description", "")) < 240, path
            assert "\n" not in node["description"], path


@pytest.mark.parametrize("file", MODELS)
def test_every_string_list_and_map_of_a_spec_is_bounded(file: str) -> None:
    # The API server prices a CEL rule by the largest value that the schema admits.
    for path, node in nodes(schema_of(file)["properties"]["spec"], "spec"):
        if node.get("type") == "string":
            assert node.keys() & {"maxLength", "enum"}, path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


# ------------------------------------------------------------------------------------------------- lowering


class Leaf(ApiModel):
    """A leaf."""

    size: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Its size."""


class Tree(ApiModel):
    """A tree."""

    kind: Literal["Oak"] = "Oak"
    """Its kind."""
    leaf: Leaf = Leaf(size=0.25)
    """Its leaf."""
    label: str | None = "tag"
    """Null for none."""
    shape: Literal["Round", "very-slim"] | None = None
    """Its shape."""
    port: int | str = 1
    """A number or a name."""
    counts: dict[str, int] = Field(default={})
    """Numbers by name."""


def test_lowering() -> None:
    assert structural(Tree) == {
        "description": "A tree.",
        "type": "object",
        "properties": {
            "kind": {
                "description": "Its kind. Default: Oak.",
                "type": "string",
                "enum": ["Oak"],
                "default": "Oak",
            },
            "leaf": {
                "description": "Its leaf.",
                "type": "object",
                "properties": {
                    "size": {
                        "description": "Its size. Default: 0.5.",
                        "type": "number",
                        "minimum": 0,
                        "exclusiveMinimum": True,
                        "maximum": 1,
                        "exclusiveMaximum": True,
                        "default": 0.5,
                    }
                },
                "default": {"size": 0.25},
            },
            "label": {
                "description": "Null for none. Default: tag.",
                "type": "string",
                "nullable": True,
                "default": "tag",
            },
            "shape": {
                "description": "Its shape.",
                "type": "string",
                "nullable": True,
                "pattern": "^(Round|very-slim)$",
                "maxLength": 9,
            },
            "port": {
                "description": "A number or a name. Default: 1.",
                "x-kubernetes-int-or-string": True,
                "default": 1,
            },
            "counts": {
                "description": "Numbers by name.",
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "default": {},
            },
        },
    }


class Union1(ApiModel):
    """Two objects."""

    either: Leaf | Tree
    """One of them."""


class Anything(ApiModel):
    """No type."""

    value: Any
    """Whatever."""


class Unique(ApiModel):
    """A set."""

    values: Annotated[list[int], Field(json_schema_extra={"uniqueItems": True})]
    """Each once."""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Union1, "Union1.either: is a union: use one type"),
        (Anything, "Anything.value: has no type"),
        (Unique, "Unique.values: a structural schema cannot say uniqueItems"),
    ],
)
def test_what_cannot_be_lowered_is_refused(model: type[ApiModel], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        structural(model)


# ------------------------------------------------------------------------------------------------- defaults


def stored(value: Any, schema: Schema) -> Any:
    """What the API server keeps of a value: no unknown fields, no nulls but nullable ones, every default."""
    if value is None or schema.get(FREE_FORM):
        return value
    if "items" in schema:
        return [stored(item, schema["items"]) for item in value]
    if "properties" not in schema:
        return value
    kept = {}
    for name, field in schema["properties"].items():
        given = name in value and (value[name] is not None or field.get("nullable"))
        if given or "default" in field:
            kept[name] = stored(value[name] if given else field["default"], field)
    return kept


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(below) for name, below in value.items() if below is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def examples() -> list[dict[str, Any]]:
    yaml = YAML(typ="safe", pure=True)
    files = sorted((REPOSITORY / "manifests" / "examples").glob("*.yaml"))
    assert files
    documents = [document for file in files for document in yaml.load_all(file)]
    return [document for document in documents if document["kind"] == "RLJob"]


@pytest.mark.parametrize(
    "manifest",
    [
        MINIMAL,
        laid(MINIMAL, {"spec": {"evaluation": {}}}),
        laid(MINIMAL, {"spec": {"model": {"lora": {}}}}),
        laid(MINIMAL, {"spec": {"rollout": {"pools": [{"name": "a", "scaling": {}}]}}}),
        *examples(),
    ],
)
def test_defaults_are_those_of_the_models(manifest: dict[str, Any]) -> None:
    job = RLJob.model_validate(manifest)
    kept = {**manifest, "spec": stored(manifest["spec"], schema_of("rljobs.yaml")["properties"]["spec"])}
    assert RLJob.model_validate(kept) == job
    if kept["spec"]["data"]["promptTemplate"] == "":  # as null, which kubectl would drop
        del kept["spec"]["data"]["promptTemplate"]
    assert kept["spec"] == without_nulls(job.spec.model_dump(mode="json", by_alias=True))


def test_a_site_s_defaults_are_those_of_its_model() -> None:
    manifest: dict[str, Any] = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "Site",
        "metadata": {"name": "east"},
        "spec": {"link": {"bitsPerSecond": 100_000_000}},
    }
    kept = {**manifest, "spec": stored(manifest["spec"], schema_of("sites.yaml")["properties"]["spec"])}
    assert kept["spec"]["graceSeconds"] == 600
    assert Site.model_validate(kept) == Site.model_validate(manifest)


def test_null_is_absent_except_where_it_has_a_meaning() -> None:
    schema = schema_of("rljobs.yaml")["properties"]["spec"]
    job = RLJob.model_validate(MINIMAL)
    written_out = {**MINIMAL, "spec": job.spec.model_dump(mode="json", by_alias=True)}
    assert None in written_out["spec"].values()
    assert stored(written_out["spec"], schema) == written_out["spec"]
    assert RLJob.model_validate(written_out) == job

    for chat in (None, ""):
        spec = stored(laid(MINIMAL, {"spec": {"data": {"promptTemplate": chat}}})["spec"], schema)
        assert spec["data"]["promptTemplate"] == chat
        assert RLJob.model_validate({**MINIMAL, "spec": spec}).spec.data.prompt_template is None
    meant = [path for path, node in nodes(schema) if node.get("nullable") and "default" in node]
    assert meant == ["data.promptTemplate"]


def test_status_has_no_defaults() -> None:
    for file in MODELS:
        assert not [p for p, n in nodes(schema_of(file)["properties"]["status"]) if "default" in n]
    schema = schema_of("rljobs.yaml")["properties"]["status"]
    written = {"step": 3, "rollout": "1/2", "pools": [{"name": "cpu", "replicas": 2, "readyReplicas": 1}]}
    assert stored(written, schema) == written
    assert RLJobStatus.model_validate(written).rollout == "1/2"


def test_what_the_operator_applies_is_kept_whole(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    job = make_job(rollout__pools=[{"name": "a", "template": {"spec": {"nodeSelector": {"gpu": "l40s"}}}}])
    manifest = rollout_pool(resolve_job(job, defaults), job.spec.rollout.pools[0], None)
    assert RolloutPool.model_validate(manifest).spec.pool == "a"
    assert stored(manifest["spec"], schema_of("rolloutpools.yaml")["properties"]["spec"]) == manifest["spec"]


# ------------------------------------------------------------------------------------------------- rules


def models(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every model below, with its path as `nodes` has it."""
    yield path, model
    for field in model.model_fields.values():
        for mark, found in _inside(field.annotation):
            yield from models(found, f"{path}.{field.alias}{mark}" if path else f"{field.alias}{mark}")


def _inside(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "", annotation
    elif get_origin(annotation) in {Union, UnionType, Annotated, list}:
        mark = "[]" if get_origin(annotation) is list else ""
        yield from ((mark + m, f) for part in get_args(annotation) for m, f in _inside(part))


@pytest.mark.parametrize("file", MODELS)
def test_every_rule_of_every_model_is_there(file: str) -> None:
    schemas = dict(nodes(schema_of(file)))
    for path, model in models(MODELS[file]):
        rules: tuple[Rule, ...] = getattr(model, "rules", ())
        for rule in rules:
            said = {"rule": rule.cel, "message": rule.message, "fieldPath": f".{rule.field}"}
            assert said in schemas[path][RULES], path


# ------------------------------------------------------------------------------------------------- immutability


_GROWS = "self >= oldSelf"


def immutable(file: str) -> set[str]:
    """Fields that a rule compares with what they were; with `?` where only their presence is."""
    found = set()
    for path, node in nodes(schema_of(file)):
        for rule in node.get(RULES, ()):
            if "oldSelf" in rule["rule"] and rule["rule"] != _GROWS:
                presence = not re.search(r"self\)?(\.\w+)? == (dyn\()?oldSelf", rule["rule"])
                found.add(f"{path}{rule.get('fieldPath', '')}{'?' if presence else ''}")
                assert rule["reason"] == "FieldValueForbidden"
                assert ": change it back, or " in rule["message"]
    return found


def test_what_only_grows() -> None:
    rules = [
        (path, rule)
        for path, node in nodes(schema_of("rljobs.yaml"))
        for rule in node.get(RULES, ())
        if rule["rule"] == _GROWS
    ]
    assert [path for path, _ in rules] == ["spec.nats.credentialsGeneration"]
    assert all(rule["reason"] == "FieldValueForbidden" for _, rule in rules)


def test_what_is_immutable() -> None:
    assert immutable("rolloutpools.yaml") == {"spec.job", "spec.pool"}
    assert immutable("sites.yaml") == {"spec.domain"}
    assert immutable("rljobs.yaml") == {
        "spec.managedBy",
        "spec.model.uri",
        *(f"spec.model.lora{field}" for field in ("?", ".rank", ".alpha")),
        *(
            f"spec.data.{field}"
            for field in (
                "source", "dataset", "options", "promptTemplate", "chatTemplateKwargs", "filter.maxPromptTokens",
                "onBadRow", "promptsPerStep", "groupSize", "seed",
            )
        ),
        *(f"spec.evaluation.data.{field}" for field in ("source", "dataset", "options", "seed")),
        "spec.evaluation.sets",
        "spec.reward.functions",
        "spec.reward.perGroup",
        "spec.reward.skipSpecialTokens",
        "spec.reward.weights",
        *(
            f"spec.rollout.environment{field}"
            for field in (
                "?", ".name", ".options", ".maxTurns", ".timeoutSeconds", ".episodeSeconds", ".network",
            )
        ),
        "spec.rollout.pools[].site",
        "spec.trainer.backend",
        "spec.trainer.checkpoint.uri",
        "spec.weights.transport",
        "spec.weights.uri",
        "spec.nats.url",
    }  # fmt: skip


def test_a_cluster_keeps_at_least_what_a_resumed_run_keeps() -> None:
    kept = {path.removesuffix("?") for path in immutable("rljobs.yaml")}
    leaves = [p for p, n in nodes(schema_of("rljobs.yaml")) if "properties" not in n and not p.endswith(".*")]
    for fixed in IMMUTABLE_ON_RESUME:
        below = {leaf for leaf in leaves if IMMUTABLE_ON_RESUME[fixed].keeps(fixed, leaf)}
        assert below
        assert below <= kept


# ------------------------------------------------------------------------------------------------- the page


def test_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs" / "api.md").read_text()
    monkeypatch.chdir(tmp_path)
    (manifest,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    Path("job.yaml").write_text(manifest)
    write_model(tmp_path / "model")
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    shown = re.split(r"^\$ rljob ", block, flags=re.MULTILINE)[1:]
    for example in shown:
        command, _, output = example.partition("\n")
        result = CliRunner().invoke(app, command.split())
        assert result.output.replace(f"{tmp_path}/", "") == output


def test_the_page_lists_what_is_immutable() -> None:
    page = (REPOSITORY / "docs" / "api.md").read_text()
    (table,) = re.findall(r"\| immutable \|.*?\n\|---.*?\n(.*?)\n\n", page, re.DOTALL)
    said = re.findall(r"`([\w.\[\]]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()))
    frozen = {path.removesuffix("?") for path in immutable("rljobs.yaml")}
    for path in said:
        assert any(leaf == f"spec.{path}" or leaf.startswith(f"spec.{path}.") for leaf in frozen), path
    for leaf in frozen:
        assert any(leaf == f"spec.{path}" or leaf.startswith(f"spec.{path}.") for path in said), leaf
