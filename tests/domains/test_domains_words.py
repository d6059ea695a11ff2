import sys

from limosa.domains.words import WORDS


def test_words_are_plain_distinct_and_short():
    assert len(WORDS) == len(set(WORDS)) == 400
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)
    assert all(3 <= len(word) <= 8 for word in WORDS)


def test_no_word_is_part_of_another():
    assert [(a, b) for a in WORDS for b in WORDS if a != b and a in b] == []


def test_no_word_shadows_a_standard_module():
    assert set(WORDS) & set(sys.stdlib_module_names) == set()
