"""Credentials and accounts: what they say, and that they come out the same each time."""

from __future__ import annotations

import base64
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import nkeys
import pytest
from cluster_jobs import lasting_credentials
from ruamel.yaml import YAML
from typer.testing import CliRunner

from rljob_cli.commands import app
from rljob_core.errors import SpecError
from rljob_core.ports import Channel
from rljob_core.spec import API_VERSION, RLJob, RLJobSpec
from rljob_core.stream_definitions import stream_definitions
from rljob_core.stream_names import StreamNames
from rljob_operator.children.nats_credentials import credentials_secret
from rljob_operator.nats import accounts as nats_accounts
from rljob_operator.nats.accounts import Seeds, server_config
from rljob_operator.nats.credentials import (
    Issuer,
    JobKeys,
    operator_credentials,
    stream_credentials,
)
from rljob_operator.nats.job_accounts import connections_of, job_accounts
from rljob_operator.nats.jwt import NkeyKind, derived_seed, public_key, seed_of, token
from rljob_operator.nats.permissions import ANNOUNCEMENTS, REPORTS, SERVICES, Holder, permissions
from rljob_operator.nats.site_accounts import SiteAccounts


def claims_of(jwt: str) -> dict[str, Any]:
    """The claims in a token; its signature is not checked."""
    part = jwt.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return claims


def seeds(first: int = 1) -> Seeds:
    numbers = itertools.count(first)
    return Seeds.complete({}, lambda size: bytes([next(numbers)]) * size)


ISSUER = nats_accounts.issuer(seeds())
KEYS = JobKeys(ISSUER, "team", "sums", "u-1")
ACCOUNTS = job_accounts(KEYS, revision=1, restorable=True)


def render(holder: Holder, issuer: Issuer = ISSUER, **identity: str) -> str:
    return lasting_credentials(
        issuer, holder, **{"namespace": "team", "job": "sums", "uid": "u-1"} | identity
    )


def parts(text: str) -> tuple[dict, str]:
    """The claims and the seed of a credentials file."""
    lines = text.splitlines()
    return claims_of(lines[1]), lines[5]


def matches(pattern: str, subject: str) -> bool:
    """Whether all that `subject` stands for falls under a pattern."""
    wanted, words = pattern.split("."), subject.split(".")
    for index, part in enumerate(wanted):
        if part == ">":
            return len(words) > index
        if index >= len(words) or (part not in ("*", words[index])):
            return False
    return len(wanted) == len(words) and (">" not in words)


def verify(jwt: str) -> dict:
    head, body, signature = jwt.split(".")
    claims = claims_of(jwt)
    raw = base64.b32decode(claims["iss"] + "=" * (-len(claims["iss"]) % 8))[1:33]
    nkeys.nacl.signing.VerifyKey(raw).verify(
        f"{head}.{body}".encode(), base64.urlsafe_b64decode(signature + "==")
    )
    return claims


def test_the_same_job_gets_the_same_file_from_every_operator() -> None:
    assert render(Holder.TRAINER) == render(Holder.TRAINER, Issuer.read(ISSUER.text()))


def test_every_role_job_and_installation_has_a_user_of_its_own() -> None:
    files = [render(holder) for holder in Holder]
    files += [render(Holder.ROLLOUT, **{part: "other"}) for part in ("namespace", "job", "uid")]
    files += [render(Holder.ROLLOUT, nats_accounts.issuer(seeds(100))), operator_credentials(ISSUER)]
    users = [parts(text) for text in files]
    assert len({claims["sub"] for claims, _ in users}) == len(files)
    assert len({seed for _, seed in users}) == len(files)


def test_identities_that_read_alike_are_different_users() -> None:
    one = parts(render(Holder.ROLLOUT, namespace="a", job="b-c"))
    other = parts(render(Holder.ROLLOUT, namespace="a-b", job="c"))
    assert one[0]["sub"] != other[0]["sub"]


@pytest.mark.parametrize("holder", Holder)
def test_a_file_is_a_signed_token_and_its_users_seed(holder: Holder) -> None:
    text = render(holder)
    claims, seed = parts(text)
    assert verify(text.splitlines()[1]) == claims
    assert claims["sub"] == public_key(seed)
    assert seed.startswith("SU")
    assert claims["iss"] == public_key(KEYS.signing(holder))
    # The token says who it is; what it may do is the account's to say, which the operator can change.
    assert claims["nats"] == {"type": "user", "version": 2, "issuer_account": KEYS.account("roles")}
    assert "exp" not in claims


def test_no_two_jobs_and_no_two_installations_share_an_account() -> None:
    keys = [KEYS, *(replace(KEYS, **{part: "other"}) for part in ("namespace", "job", "uid"))]
    keys.append(replace(KEYS, issuer=nats_accounts.issuer(seeds(100))))
    names = [each.account(name) for each in keys for name in ("streams", "roles")]
    assert len(set(names)) == len(names)


def test_only_the_operator_connects_to_the_account_of_the_streams() -> None:
    streams, _ = (verify(token) for token in ACCOUNTS.tokens)
    (key,) = streams["nats"]["signing_keys"]
    operator = claims_of(stream_credentials(KEYS).splitlines()[1])
    assert operator["iss"] == key
    assert operator["nats"]["issuer_account"] == streams["sub"] == ACCOUNTS.streams
    assert key not in {public_key(KEYS.signing(holder)) for holder in Holder}


@pytest.mark.parametrize("holder", Holder)
def test_a_role_is_held_to_its_own_job_and_its_own_inbox(holder: Holder) -> None:
    _, roles = (verify(token)["nats"] for token in ACCOUNTS.tokens)
    scopes = {scope["role"]: scope for scope in roles["signing_keys"]}
    assert scopes[holder]["key"] == public_key(KEYS.signing(holder))
    allowed = scopes[holder]["template"]
    answers, *heard = allowed["sub"]["allow"]
    assert answers == f"_INBOX.u-1.{holder}.>"
    for subject in heard:
        assert subject.startswith("stored.")
        assert "team_sums_u-1" in subject or subject.startswith("stored.rljob.team.sums.u-1.")
    assert allowed["allowed_connection_types"] == ["STANDARD"]
    assert allowed["pub"]["allow"]
    for subject in allowed["pub"]["allow"]:
        own = "team_sums_u-1" in subject or subject.startswith("rljob.team.sums.u-1.")
        assert own or subject == "to.*.rljob.team.sums.u-1.>"


def test_nobody_fills_the_streams_of_a_job_that_runs() -> None:
    _, roles = (verify(token)["nats"] for token in job_accounts(KEYS, revision=2).tokens)
    assert {scope["role"] for scope in roles["signing_keys"]} == {*Holder} - {Holder.RESTORER}


@pytest.mark.parametrize("holder", Holder)
def test_what_a_role_may_ask_reaches_the_streams_account(holder: Holder) -> None:
    names = StreamNames.of_job(namespace="team", job="sums", uid="u-1")
    for subject in permissions(holder, names, uid="u-1").publish:
        services = (*SERVICES, names.by_way_of("*"))  # the second one only of a job that has sites
        assert any(matches(service, subject.replace("*", "x").replace(">", "x")) for service in services)


NAMES = StreamNames.of_job(namespace="team", job="sums", uid="u-1")


@pytest.mark.parametrize(
    ("subject", "holders"),
    [
        (NAMES.subject_of(Channel.LEDGER, "records"), {Holder.COORDINATOR, Holder.RESTORER}),
        (NAMES.subject_of(Channel.VERSIONS, "policy"), {Holder.COORDINATOR, Holder.RESTORER}),
        (NAMES.subject_of(Channel.METRICS, "steps"), {Holder.COORDINATOR, Holder.RESTORER}),
        (NAMES.subject_of(Channel.WORK, "engine.pod-0.ab12"), {Holder.COORDINATOR}),
        (NAMES.subject_of(Channel.WORK, "site.east.engine.pod-0.ab12"), {Holder.COORDINATOR}),
        (NAMES.subject_of(Channel.TRAINING, "trainer.1"), {Holder.COORDINATOR}),
        (NAMES.subject_of(Channel.TRAJECTORIES, "payload"), {Holder.ROLLOUT, Holder.RESTORER}),
        (NAMES.subject_of(Channel.PROGRESS, "g0.0"), {Holder.ROLLOUT}),
        (f"$JS.API.STREAM.PURGE.{NAMES.stream(Channel.PROGRESS)}", {Holder.COORDINATOR}),
        (NAMES.subject_of(Channel.REWARDS, "results"), {Holder.REWARD, Holder.RESTORER}),
        (NAMES.subject_of(Channel.EVENTS, "trainer"), {Holder.TRAINER}),
        (NAMES.subject_of(Channel.EVENTS, "rollout"), {Holder.ROLLOUT}),
        (NAMES.signal_subject + "coordinator", {Holder.COORDINATOR}),
        (NAMES.signal_subject + "engine.pod-0.ab12", {Holder.COORDINATOR, Holder.ROLLOUT}),
        (f"$JS.API.STREAM.CREATE.{NAMES.stream(Channel.LEDGER)}", set()),
        (
            f"$JS.API.STREAM.MSG.DELETE.{NAMES.stream(Channel.TRAJECTORIES)}",
            {Holder.COORDINATOR, Holder.RESTORER},
        ),
        (f"$JS.API.STREAM.PURGE.{NAMES.stream(Channel.TRAJECTORIES)}", {Holder.RESTORER}),
        (f"$JS.API.STREAM.MSG.DELETE.{NAMES.stream(Channel.LEDGER)}", set()),
        (f"$JS.API.STREAM.PURGE.{NAMES.stream(Channel.WORK)}", {Holder.COORDINATOR}),
        (f"$JS.API.STREAM.PURGE.{NAMES.stream(Channel.LEDGER)}", set()),
        (f"$JS.API.STREAM.DELETE.{NAMES.stream(Channel.WORK)}", set()),
        (f"$JS.API.STREAM.UPDATE.{NAMES.stream(Channel.WORK)}", set()),
        (f"$JS.API.DIRECT.GET.{NAMES.stream(Channel.TRAINING)}", {Holder.TRAINER}),
        (f"$JS.API.DIRECT.GET.{NAMES.stream(Channel.WORK)}", {Holder.ROLLOUT}),
        (f"$JS.API.DIRECT.GET.{NAMES.stream(Channel.EVENTS)}", set()),
        (f"$JS.API.STREAM.MSG.DELETE.{NAMES.stream(Channel.TRAINING)}", {Holder.TRAINER}),
        (f"$JS.API.STREAM.MSG.DELETE.{NAMES.stream(Channel.WORK)}", {Holder.ROLLOUT}),
        (f"$JS.API.CONSUMER.MSG.NEXT.{NAMES.stream(Channel.WORK)}.engine-pod-0-ab12", set()),
        (f"$JS.API.CONSUMER.MSG.NEXT.{NAMES.stream(Channel.EVENTS)}.coordinator", {Holder.COORDINATOR}),
        (f"$JS.API.CONSUMER.MSG.NEXT.{NAMES.stream(Channel.TRAJECTORIES)}.reward", {Holder.REWARD}),
        (
            f"$JS.API.DIRECT.GET.{NAMES.stream(Channel.LEDGER)}",
            {Holder.COORDINATOR, Holder.READER, Holder.RESTORER, Holder.VIEWER},
        ),
        (f"$JS.API.CONSUMER.DELETE.{NAMES.stream(Channel.EVENTS)}.coordinator", set()),
        (f"$JS.API.CONSUMER.CREATE.{NAMES.signal_stream}.x.{NAMES.signal_subject}>", set()),
        *(
            (f"$JS.API.CONSUMER.CREATE.{NAMES.stream(channel)}.x.{NAMES.subject_of(channel, '>')}", set())
            for channel in Channel
        ),
        ("$JS.API.STREAM.LIST", set()),
        ("$JS.API.STREAM.NAMES", set()),
        ("$JS.API.INFO", set()),
    ],
)
def test_who_may_publish_where(subject: str, holders: set[Holder]) -> None:
    def may(holder: Holder) -> bool:
        return any(matches(p, subject) for p in permissions(holder, NAMES, uid="u-1").publish)

    assert {holder for holder in Holder if may(holder)} == holders


@pytest.mark.parametrize(
    ("subject", "holders"),
    [
        (
            NAMES.subject_of(Channel.LEDGER, ">"),
            {Holder.COORDINATOR, Holder.READER, Holder.RESTORER, Holder.VIEWER},
        ),
        (NAMES.subject_of(Channel.TRAJECTORIES, ">"), {Holder.COORDINATOR, Holder.READER, Holder.VIEWER}),
        (NAMES.subject_of(Channel.REWARDS, ">"), {Holder.COORDINATOR, Holder.READER, Holder.VIEWER}),
        (NAMES.subject_of(Channel.VERSIONS, ">"), {Holder.ROLLOUT, Holder.READER, Holder.VIEWER}),
        (NAMES.subject_of(Channel.METRICS, ">"), {Holder.READER, Holder.TRACKER, Holder.VIEWER}),
        (f"{NAMES.signal_subject}>", {Holder.COORDINATOR, Holder.READER, Holder.VIEWER}),
        (NAMES.subject_of(Channel.WORK, ">"), {Holder.ROLLOUT}),
        (NAMES.subject_of(Channel.TRAINING, ">"), {Holder.TRAINER}),
        (NAMES.subject_of(Channel.EVENTS, ">"), set()),
    ],
)
def test_who_hears_what_is_stored_and_may_ask_for_it(subject: str, holders: set[Holder]) -> None:
    granted = {holder: permissions(holder, NAMES, uid="u-1") for holder in Holder}
    heard = f"stored.{subject}"
    assert {holder for holder in Holder if heard in granted[holder].subscribe} == holders
    (definition,) = (
        definition
        for definition in stream_definitions(NAMES, trajectory_bytes=1)
        if definition["subjects"] == [subject]
    )
    announced = {"src": subject, "dest": heard, "headers_only": True}
    assert definition.get("republish") == (announced if holders else None)
    for holder in holders:
        for request in ("DIRECT.GET", "STREAM.MSG.GET", "STREAM.INFO"):
            assert f"$JS.API.{request}.{definition['name']}" in granted[holder].publish


@pytest.mark.parametrize("name", ["a.b", "*", ">", "a b", ""])
def test_a_name_that_is_no_single_token_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"metadata\.name"):
        render(Holder.ROLLOUT, job=name)


def test_the_secret_is_immutable_and_named_by_what_it_holds() -> None:
    job = RLJob.model_validate(
        {
            "apiVersion": API_VERSION,
            "kind": "RLJob",
            "metadata": {"name": "sums", "namespace": "team", "uid": "u-1"},
            "spec": {
                "steps": 1,
                "model": {"uri": "model"},
                "data": {"dataset": "chain_sum"},
                "rollout": {"pools": [{"name": "a"}]},
            },
        }
    )
    secret = credentials_secret(job, Holder.ROLLOUT, ISSUER)
    assert secret == credentials_secret(job, Holder.ROLLOUT, ISSUER)
    assert secret["immutable"] is True
    text = base64.b64decode(secret["data"]["user.creds"]).decode()
    token, other_lines = render(Holder.ROLLOUT).splitlines()[1], text.splitlines()
    assert render(Holder.ROLLOUT).replace(token, other_lines[1]) == text
    assert claims_of(token)
    assert "." not in other_lines[1], "no token"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    other = credentials_secret(job, Holder.ROLLOUT, nats_accounts.issuer(seeds(100)))
    assert secret["metadata"]["name"] != other["metadata"]["name"]


# ------------------------------------------------------------------------------------------------ accounts


def test_accounts_follow_from_seeds_alone() -> None:
    assert server_config(seeds()) == server_config(seeds())
    assert nats_accounts.secrets(seeds(), namespace="x") == nats_accounts.secrets(seeds(), namespace="x")
    assert server_config(seeds()) != server_config(seeds(100))


def test_the_servers_configuration_holds_no_secret() -> None:
    text = server_config(seeds())
    for seed in (getattr(seeds(), name) for name in Seeds.__slots__):
        assert seed
        assert seed not in text


def test_a_removed_seed_is_created_again_and_the_others_stay() -> None:
    before = seeds()
    known = {name: getattr(before, name) for name in Seeds.__slots__ if name != "signing"}
    after = Seeds.complete(known, lambda size: b"\xff" * size)
    assert after.signing != before.signing
    assert {name: getattr(after, name) for name in known} == known
    # The old key signs nothing that counts from then on, and the accounts keep their names, and so their streams.
    assert public_key(before.signing) not in server_config(after)
    assert f'"{public_key(before.signing)}"' not in str(operator_claims(after))
    old, new = (replace(KEYS, issuer=nats_accounts.issuer(each)) for each in (before, after))
    assert old.account("streams") == new.account("streams")
    assert old.signing("trainer") != new.signing("trainer")


@pytest.mark.parametrize(
    "seed",
    [
        "",
        "SO",
        seed_of(NkeyKind.USER, b"x" * 32),
        seed_of(NkeyKind.OPERATOR, b"x" * 32)[:-1] + "A",
        "not a seed",
        "é",
    ],
)
def test_what_is_no_seed_is_refused(seed: str) -> None:
    with pytest.raises(ValueError, match="not the seed of operator keys"):
        Seeds.complete({"signing": seed}, bytes)


def preloaded(config: str) -> dict[str, str]:
    block = config.partition("resolver_preload {")[2].partition("}")[0]
    lines = [line.strip() for line in block.splitlines()]
    pairs = (line.split(": ") for line in lines if ": " in line)
    return {key: json.loads(jwt) for key, jwt in pairs}


def operator_claims(seeds_: Seeds) -> dict[str, Any]:
    first, *_ = server_config(seeds_).splitlines()
    return verify(json.loads(first.removeprefix("operator: ")))["nats"]


def test_the_server_begins_with_one_account_which_has_no_streams() -> None:
    ((name, jwt),) = preloaded(server_config(seeds())).items()
    claims = verify(jwt)
    assert claims["sub"] == name == ISSUER.system_account == operator_claims(seeds())["system_account"]
    assert "disk_storage" not in claims["nats"]["limits"]
    assert operator_claims(seeds())["signing_keys"] == [public_key(seeds().signing)]
    # What a job's account sends there comes under the name that the server gives it.
    (reports,) = claims["nats"]["exports"]
    assert reports["subject"].split(".")[reports["account_token_position"] - 1] == "*"


def test_a_jobs_accounts_give_nothing_away_but_to_each_other() -> None:
    streams, roles = (verify(token) for token in ACCOUNTS.tokens)
    assert streams["iss"] == roles["iss"] == public_key(ISSUER.signing_seed)
    exports = {export["subject"]: export["type"] for export in streams["nats"]["exports"]}
    assert exports == {**dict.fromkeys(SERVICES, "service"), ANNOUNCEMENTS: "stream"}
    assert {i["account"] for i in roles["nats"]["imports"]} == {streams["sub"]}
    assert "exports" not in roles["nats"]
    assert "disk_storage" not in roles["nats"]["limits"]
    (report,) = streams["nats"]["imports"]
    assert report["account"] == ISSUER.system_account
    assert report["subject"] == f"{REPORTS}.{streams['sub']}.>"


def test_the_limits_of_a_jobs_account() -> None:
    limits = verify(job_accounts(KEYS, revision=1, storage_bytes=5 << 30).tokens[0])["nats"]["limits"]
    assert limits["disk_storage"] == 5 << 30
    assert limits["streams"] == len(NAMES.all_streams)
    assert 0 < limits["consumer"] < 1 << 20
    roles = verify(job_accounts(KEYS, revision=1, connections=300).tokens[1])["nats"]["limits"]
    assert roles["conn"] == 300


def test_connections_follow_from_the_processes_that_a_job_may_have() -> None:
    def of(*pools: dict[str, object]) -> int:
        return connections_of(RLJobSpec.model_validate(SPEC | {"rollout": {"pools": list(pools)}}))

    assert of({"name": "a"}) == 128
    scaled = {"name": "b", "scaling": {"minReplicas": 1, "maxReplicas": 500}}
    assert of({"name": "a", "replicas": 100}, scaled) == 4 * (600 + 3)
    assert of({"name": "a", "replicas": 10_000}) == 16384, "a quarter of the server's"


SPEC = {"steps": 1, "model": {"uri": "/model"}, "data": {"dataset": "chain_sum"}}


def test_a_later_revision_is_the_newer_token() -> None:
    before, after = (
        [verify(jwt)["iat"] for jwt in job_accounts(KEYS, revision=number).tokens] for number in (1, 2)
    )
    assert [new - old for old, new in zip(before, after, strict=True)] == [1, 1]


# ------------------------------------------------------------------------------------------------ keys


def test_a_derived_seed_depends_on_its_parent_and_its_label() -> None:
    parents = [seed_of(NkeyKind.ACCOUNT, bytes([n]) * 32) for n in (1, 2)]
    derived = [derived_seed(NkeyKind.USER, parent, label) for parent in parents for label in ("a", "b")]
    assert len(set(derived)) == 4
    assert derived[0] == derived_seed(NkeyKind.USER, parents[0], "a")


@pytest.mark.parametrize(
    ("kind", "letter"), [(NkeyKind.OPERATOR, "O"), (NkeyKind.ACCOUNT, "A"), (NkeyKind.USER, "U")]
)
def test_keys_say_what_they_are_for(kind: NkeyKind, letter: str) -> None:
    seed = seed_of(kind, b"x" * 32)
    assert seed.startswith(f"S{letter}")
    assert public_key(seed).startswith(letter)


def test_a_token_verifies() -> None:
    seed = seed_of(NkeyKind.ACCOUNT, b"x" * 32)
    claims = verify(token(name="n", subject="s", issuer=seed, claims={"type": "user"}))
    assert (claims["name"], claims["sub"], claims["nats"]) == ("n", "s", {"type": "user", "version": 2})


def test_the_longest_names_make_tokens_that_the_server_takes() -> None:
    longest = {"namespace": "n" * 63, "job": "j" * 52, "uid": "u" * 36}
    assert len(render(Holder.COORDINATOR, **longest)) < 4 << 10
    keys = JobKeys(ISSUER, **longest)
    assert len(stream_credentials(keys)) < 4 << 10  # of which a client sends a part in one line
    assert all(len(jwt) < 512 << 10 for jwt in job_accounts(keys, revision=1).tokens)


def test_another_generation_has_other_keys_of_roles_and_of_nothing_else() -> None:
    """The operator connects by its own before it gives the server the accounts of a new generation."""
    later = replace(KEYS, generation=1)
    for holder in Holder:
        assert later.signing(holder) != KEYS.signing(holder)
        assert later.user(holder) != KEYS.user(holder)
    assert stream_credentials(later) == stream_credentials(KEYS)
    streams, roles = job_accounts(later, revision=1).tokens
    assert streams == ACCOUNTS.tokens[0]
    assert verify(roles)["sub"] == verify(ACCOUNTS.tokens[1])["sub"]


# ------------------------------------------------------------------------------------------------ rljob nats-init


def test_nats_site_prints_what_connects_both_servers(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["nats-site", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    hub, site = (nats_accounts.issuer(seeds(first)) for first in (1, 100))
    (tmp_path / "hub.json").write_text(hub.text())
    (tmp_path / "site.json").write_text(site.text())
    credentials = run("east", str(tmp_path / "hub.json"))
    assert credentials == SiteAccounts(hub, "east").leaf_credentials()
    assert hub.signing_seed not in credentials
    assert hub.accounts_seed not in credentials
    lines = run("east", str(tmp_path / "site.json"), "--hub", "nats-leaf://hub.example:7422")
    assert SiteAccounts(site, "east", at_site=True).border in lines
    wrong = CliRunner().invoke(app, ["nats-site", "east", str(tmp_path / "gone.json")])
    assert wrong.exit_code == 2
    (tmp_path / "no.json").write_text("{}")
    assert (
        "is no issuer.json"
        in CliRunner().invoke(app, ["nats-site", "east", str(tmp_path / "no.json")]).output
    )


def test_nats_init_writes_the_same_again(tmp_path: Path) -> None:
    def run() -> dict[str, str]:
        result = CliRunner().invoke(app, ["nats-init", str(tmp_path / "nats"), "--namespace", "here"])
        assert result.exit_code == 0, result.output
        return {file.name: file.read_text() for file in (tmp_path / "nats").iterdir()}

    first = run()
    assert set(first) == {"seeds.json", "accounts.conf", "server.crt", "server.key", "secrets.yaml"}
    assert run() == first
    known = json.loads(first["seeds.json"])
    found = {m["metadata"]["name"]: m for m in YAML(typ="safe").load_all(first["secrets.yaml"])}
    assert {m["metadata"]["namespace"] for m in found.values()} == {"here"}
    assert list(found.values()) == nats_accounts.secrets(Seeds.complete(known, bytes), namespace="here")
    assert all((tmp_path / "nats" / name).stat().st_mode & 0o77 == 0 for name in first)
    # A new signing key, the same accounts.
    del known["signing"]
    (tmp_path / "nats" / "seeds.json").write_text(json.dumps(known))
    after = json.loads(run()["seeds.json"])
    assert after.pop("signing") != json.loads(first["seeds.json"])["signing"]
    assert after == known


@pytest.mark.parametrize("text", ["", "[]", '{"other": "x"}', '{"signing": "x"}'])
def test_nats_init_leaves_a_file_that_holds_no_seeds(tmp_path: Path, text: str) -> None:
    (tmp_path / "seeds.json").write_text(text)
    result = CliRunner().invoke(app, ["nats-init", str(tmp_path)])
    assert result.exit_code == 2
    assert (tmp_path / "seeds.json").read_text() == text
    assert [file.name for file in tmp_path.iterdir()] == ["seeds.json"]
