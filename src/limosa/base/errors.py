"""One exception type per boundary, so that a failure's kind is never guessed from its text.

`UserError` is the user's to mend (exit status 2). `InfrastructureError` is nobody's policy: an
episode that meets one ends `invalid` and is retried; it never becomes a reward. A malformed tool
call is neither: it is an observation for the model (see `agent/loop.py`).
"""


class LimosaError(Exception):
    """Base of every error that Limosa raises on purpose."""


class UserError(LimosaError, ValueError):
    """Bad input: says what failed, the value, what was expected, and a hint with the way out."""

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(f"{what}\nhint: {hint}" if hint else what)
        self.what = what
        self.hint = hint


class ConfigError(UserError):
    """A run file that does not validate."""


class ModelError(UserError):
    """A model folder that is missing, incomplete or of an architecture that is not supported."""


class InfrastructureError(LimosaError):
    """A machine, a sandbox or a verifier failed; the model is not to blame."""


class SandboxError(InfrastructureError):
    """The box died, could not be made, or did not answer."""


class VerifierError(InfrastructureError):
    """The verifier crashed or gave something that is not a verdict."""


class EngineError(InfrastructureError):
    """The inference engine could not go on with a request."""


class LearnerError(InfrastructureError):
    """The learner's process died or reported a failure."""
