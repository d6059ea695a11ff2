import pytest

from limosa.domains.answers import normalise_answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("amber", "amber"),
        (' "Amber". \n', "amber"),
        ("`amber`", "amber"),
        ("", ""),
        ('"', ""),
        ("amber cedar", "amber cedar"),
        ("the word is amber", "the word is amber"),
    ],
)
def test_only_the_wrapping_of_an_answer_is_taken_off(answer: str, expected: str) -> None:
    assert normalise_answer(answer) == expected
