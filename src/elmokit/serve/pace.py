"""How fast the batches of a lane run.

Input: the size and the seconds of each batch.  Output: tokens per second, and the expected seconds of a batch.

A recurrent network takes time per step and per token: a batch whose longest sentence has n tokens takes n steps,
however few sentences it has. Both times are fitted to the batches that ran, the newest ones count most.
"""

from __future__ import annotations

INITIAL_SPEED = 1000.0  # tokens per second, before the first measurement
SPEED_UPDATE = 0.2  # weight of the newest full batch in the running mean of the speed
FIT_MEMORY = 0.98  # weight of earlier batches in the fit, for each new batch


class Pace:
    """Running measurements of one lane.

    Args:
        batch_tokens: Size of a full batch in tokens. A small batch runs slower per token than the batches of a full
            queue, so it counts less in the speed.
    """

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens = batch_tokens
        self.tokens_per_second = INITIAL_SPEED
        self._seen = 0.0  # number of full batches
        self._steps_steps = self._steps_tokens = self._tokens_tokens = 0.0  # sums of products
        self._steps_seconds = self._tokens_seconds = 0.0

    def record(self, num_tokens: int, num_steps: int, seconds: float, busy_seconds: float) -> None:
        """Count a batch.

        Args:
            num_tokens: Number of its tokens.
            num_steps: Number of tokens of its longest sentence.
            seconds: Seconds that it ran.
            busy_seconds: Seconds since the batch before it, or since it could start: what the queue waits for.
        """
        fraction = min(1.0, num_tokens / self.batch_tokens)
        self._seen += fraction
        weight = max(SPEED_UPDATE * fraction, fraction / max(self._seen, fraction))
        self.tokens_per_second += weight * (num_tokens / max(busy_seconds, 1e-6) - self.tokens_per_second)
        for name, value in (
            ("_steps_steps", num_steps * num_steps),
            ("_steps_tokens", num_steps * num_tokens),
            ("_tokens_tokens", num_tokens * num_tokens),
            ("_steps_seconds", num_steps * seconds),
            ("_tokens_seconds", num_tokens * seconds),
        ):
            setattr(self, name, FIT_MEMORY * getattr(self, name) + value)

    def seconds(self, num_tokens: int, num_steps: int) -> float:
        """Expected seconds of a batch.

        Args:
            num_tokens: Number of its tokens.
            num_steps: Number of tokens of its longest sentence.
        """
        per_step, per_token = self._fit()
        return per_step * num_steps + per_token * num_tokens

    def _fit(self) -> tuple[float, float]:
        """Seconds per step and per token by least squares; neither is negative."""
        if not self._tokens_tokens:
            return 0.0, 1 / INITIAL_SPEED
        determinant = self._steps_steps * self._tokens_tokens - self._steps_tokens**2
        if determinant > 1e-6 * self._steps_steps * self._tokens_tokens:
            per_step = (
                self._steps_seconds * self._tokens_tokens - self._tokens_seconds * self._steps_tokens
            ) / determinant
            per_token = (
                self._tokens_seconds * self._steps_steps - self._steps_seconds * self._steps_tokens
            ) / determinant
            if per_step >= 0 and per_token >= 0:
                return per_step, per_token
            if per_token < 0:
                return self._steps_seconds / self._steps_steps, 0.0
        return 0.0, self._tokens_seconds / self._tokens_tokens
