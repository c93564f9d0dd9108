"""A guessing game for arithmetic (guessing-game.yaml): a wrong answer is told its direction, and may be given again."""

from __future__ import annotations

from rljob_runtime.environments import EpisodeStart, ModelTurn, TurnObservation


class GuessingGame:
    """Opens games; each further guess leaves the share `decay` of the score."""

    def __init__(self, *, decay: float = 0.5) -> None:
        self.decay = decay

    async def open(self, start: EpisodeStart) -> Game:
        """Open a game in which the sum of the prompt is to be guessed."""
        return Game(question=start.text, secret=int(start.item["answer"]), decay=self.decay)


class Game:
    """One game: its score is 1 for a right first guess, then less for each further one, and 0 if none is right."""

    def __init__(self, *, question: str, secret: int, decay: float) -> None:
        self.question, self.secret, self.decay = question, secret, decay
        self.worth, self.won = 1.0, False

    async def react(self, turn: ModelTurn) -> TurnObservation | None:
        """End the game if the guess is right; else say `+` for higher or `-` for lower, and ask again."""
        text = turn.text.strip()
        guess = int(text) if text.removeprefix("-").isdecimal() else None
        if guess == self.secret:
            self.won = True
            return None
        self.worth *= self.decay
        hint = "" if guess is None else "+" if guess < self.secret else "-"
        return TurnObservation(text=hint + self.question)

    async def score(self, *, truncated: bool) -> float:  # noqa: ARG002
        """What the right guess was worth."""
        return self.worth if self.won else 0.0
