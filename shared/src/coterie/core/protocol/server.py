"""The server half of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, Literal, TypeVar

from coterie.core.errors import UserError
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Down
from coterie.core.tensors.keys import Key

S = TypeVar("S")
Decision = Literal["go", "block", "end"]


class Server(Generic[S]):
    """The server half: rounds over cohorts of clients, and what happens between data blocks.

    State is a value: a dataclass of tensors and plain values that a checkpoint can hold. Settings
    and whatever else the server holds are constructor arguments. A ``history`` is the metrics of
    the rounds of the newest block so far, oldest first.

    Attributes:
        rounds: after which a block ends, where `stop` is not told otherwise; None = never.
        averages: whether what it makes of clients' releases is a mean over them, by
            ``ask(..., reduce=...)`` or `Cohort.summed`, for which a robust rule can stand in.
        sums: whether it makes nothing of them but sums, by ``ask(..., reduce=...)``.
    """

    rounds: int | None = None
    averages: bool = False
    sums: bool = False

    @property
    def sums_alike(self) -> bool:
        """Whether each client counts by 1 at most in these sums, so that noise on them hides any.

        Default: where there are sums alone, yes.
        """
        return self.sums

    def begin(self, key: Key) -> S:
        """Make the state before the first block."""
        raise NotImplementedError(f"{type(self).__name__} must say how the server starts")

    def start_block(self, state: S, block: int, cohort: Cohort, key: Key) -> S:
        """Prepare for a block of a stream (new items, new clients). Default: nothing."""
        return state

    def round(self, state: S, cohort: Cohort, key: Key) -> S:
        """Run one communication round."""
        raise NotImplementedError(f"{type(self).__name__} must say what a round is")

    def end_block(self, state: S, cohort: Cohort, key: Key) -> S:
        """Finish a block: final tests, what is carried on. Default: nothing."""
        return state

    def reopen(self, state: S, history: Sequence[dict[str, float]]) -> S:
        """Take back the end of a block that more rounds are to follow after all.

        The state must become the one that a run of more rounds has at this point. By default the
        end has left no trace, or else there is no way back.

        Raises:
            UserError: `end_block` cannot be taken back.
        """
        if type(self).end_block is not Server.end_block:
            raise UserError("what was done at the end of its last round cannot be taken back")
        return state

    def change_rounds(self, state: S, history: Sequence[dict[str, float]], rounds: int) -> None:
        """Accept another number of rounds for a run that is under way, or refuse it.

        A run that always had the new number must be where this one is. By default that is so while
        the block has not done more rounds; other blocks are not the server's to judge.

        Raises:
            UserError: such a run would be elsewhere by now; says why.
        """
        if len(history) > rounds:
            raise UserError(f"it has done {len(history)} already")

    def constants(self) -> Mapping[str, str]:
        """Digests of what must be as the clients have it, see `Client.constants`."""
        return {}

    def test(self, state: S, cohort: Cohort) -> None:
        """Note the final measurements of the newest block in the cohort's journal."""
        raise NotImplementedError(f"{type(self).__name__} has no test")

    def validate(self, state: S, cohort: Cohort) -> None:
        """Note how good the newest block's model is on validation data, as after a round.

        By default a test measures that too.
        """
        self.test(state, cohort)

    def stop(self, state: S, history: Sequence[dict[str, float]]) -> Decision:
        """Decide after a round: go on, end this block, or end the run.

        Default: end the block after ``rounds`` of them.
        """
        return "block" if self.rounds is not None and len(history) >= self.rounds else "go"


class ServesItems(Generic[S]):
    """A server half whose clients are recommended items; beside `Server`.

    Attributes:
        serves_all_alike: whether `serve` gives all users the same, so that many are scored at once.
    """

    serves_all_alike: ClassVar[bool] = False

    def serve(self, state: S, user: int | None, cohort: Cohort) -> Down:
        """Give what a client downloads to recommend on its own.

        Where a prediction needs other clients, they are asked here, through the cohort: what they
        answer is checked and counted as in a round, and reaches the client in the message.

        Args:
            state: of a trained run.
            user: number of the user in the data; None for someone new.
            cohort: all clients of the newest block.

        Example:
            def serve(self, state, user, cohort):
                fitted = cohort.ask(FITTED, Query(user))  # the peers' part of the prediction
                return Answer(state.weights, fitted.up)
        """
        raise NotImplementedError(f"{type(self).__name__} must say what it serves")
