import pytest

from limosa.base import errors

INFRASTRUCTURE = (
    errors.SandboxError,
    errors.VerifierError,
    errors.EngineError,
    errors.LearnerError,
)


def test_a_users_error_says_what_and_the_way_out() -> None:
    error = errors.ConfigError("seed is -1", hint="give 0 or more")
    assert str(error) == "seed is -1\nhint: give 0 or more"
    assert (error.what, error.hint) == ("seed is -1", "give 0 or more")
    assert str(errors.UserError("seed is -1")) == "seed is -1"


@pytest.mark.parametrize("kind", [errors.UserError, errors.ConfigError, errors.ModelError])
def test_what_the_user_mends_is_a_value_error(kind: type[errors.UserError]) -> None:
    assert issubclass(kind, ValueError) and issubclass(kind, errors.LimosaError)
    assert not issubclass(kind, errors.InfrastructureError)


@pytest.mark.parametrize("kind", INFRASTRUCTURE)
def test_infrastructure_is_nobodys_fault(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.InfrastructureError)
    assert not issubclass(kind, ValueError)
