"""Formats samples: groups for the terminal, and JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rljob_cli.samples.harmless import harmless
from rljob_runtime.samples.read import SampledAnswer, SampledGroup, SamplePage

_PAGE: TypeAdapter[SamplePage] = TypeAdapter(SamplePage)
#: From the lowest to the highest reward of a page; and of tokens, by the version that made them.
_REWARDS = ("red", "dark_orange", "yellow", "green_yellow", "green")
_VERSIONS = ("", "cyan", "magenta", "blue", "bright_yellow")
#: Characters of a prompt and of an answer that are shown.
_LONGEST_PROMPT, _LONGEST_ANSWER = 600, 2000
_WITHOUT = "dim"


def as_text(page: SamplePage) -> str:
    """A page as JSON."""
    return _PAGE.dump_json(page, indent=2).decode()


def print_page(console: Console, page: SamplePage) -> None:
    """Print the groups of a page, and how many there are."""
    rewards = [a.reward for group in page.groups for a in group.answers if a.reward is not None]
    lowest, highest = min(rewards, default=0.0), max(rewards, default=0.0)
    for group in page.groups:
        console.print(_title(group), soft_wrap=True)
        console.print(Text(_cut(harmless(group.prompt), _LONGEST_PROMPT)), style="bold")
        if group.expected:
            console.print(Text(f"expected: {harmless(group.expected)}"), style=_WITHOUT)
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(ratio=1, overflow="fold")
        table.add_column(style=_WITHOUT)
        for answer in group.answers:
            table.add_row(_reward(answer, lowest, highest), _answer(answer), _notes(answer))
        console.print(table)
        console.print()
    shown = f"{page.start + 1}-{page.start + len(page.groups)} of " if page.groups else ""
    found = f"groups {shown}{page.total:,} that match" if page.total else "no group matches"
    console.print(f"{found}, {page.kept:,} are kept", style=_WITHOUT, highlight=False)


def _title(group: SampledGroup) -> Text:
    scored = sum(answer.reward is not None and not answer.replaced for answer in group.answers)
    trained = "not trained on" if group.step is None else f"step {group.step}"
    parts = [
        group.group,
        trained if group.evaluated is None else f"evaluation of version {group.evaluated}",
        "no score" if group.reward is None else f"reward {group.reward:.3f} of {scored}",
    ]
    return Text(" · ".join(parts), style="underline")


def _reward(answer: SampledAnswer, lowest: float, highest: float) -> Text:
    if answer.reward is None:
        return Text("–", style="bold red")
    place = (answer.reward - lowest) / (highest - lowest) if highest > lowest else float(answer.reward > 0)
    return Text(f"{answer.reward:.2f}", style=_REWARDS[round(place * (len(_REWARDS) - 1))])


def _answer(answer: SampledAnswer) -> Text:
    """The tokens, with a mark where another version goes on; a text that is too long is cut."""
    shown = Text()
    for text, style in _marked(answer):
        shown.append(harmless(text), style=style)
        if len(shown) > _LONGEST_ANSWER:
            shown.truncate(_LONGEST_ANSWER)
            shown.append(" … (see --json)", style=_WITHOUT)
            break
    if answer.error:
        shown.append(f" {harmless(answer.error)}", style="red")
    return shown


def _marked(answer: SampledAnswer) -> Iterator[tuple[str, str]]:
    versions = list(dict.fromkeys(version for version in answer.versions if version >= 0))
    before: int | None = None
    for text, version in zip(answer.texts, answer.versions, strict=True):
        if version < 0:  # an environment's
            yield text, _WITHOUT
            continue
        if before is not None and version != before:
            yield f"‹{version}›", "reverse"
        before = version
        yield text, _VERSIONS[versions.index(version) % len(_VERSIONS)]


def _notes(answer: SampledAnswer) -> str:
    """What else is worth a word."""
    versions = f"v{answer.version_min}"
    if answer.version_max > answer.version_min:
        versions += f"-{answer.version_max}"
    notes = [versions]
    if answer.trained is not None and answer.trained.staleness:
        notes.append(f"stale {answer.trained.staleness}")
    if answer.trained is not None:
        notes.append(f"adv {answer.trained.advantage:+.2f}")
    if len(answer.parts) > 1:
        notes += [f"{name.rpartition(':')[2]} {value:g}" for name, value in answer.parts.items()]
    if answer.finish == "length":
        notes.append("cut at maxTokens")
    if answer.sample == "greedy":
        notes.append("greedy")
    if answer.replaced:
        notes.append("generated again")
    return ", ".join(notes)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]} …"
