import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from limosa.domains.search_index import SearchIndex, split_tokens

TEXTS = st.lists(
    st.lists(st.sampled_from(["amber", "cedar", "otter", "town", "ship"]), max_size=8).map(
        " ".join
    ),
    min_size=1,
    max_size=8,
)
QUERIES = st.lists(st.sampled_from(["amber", "cedar", "town", "absent"]), max_size=4).map(" ".join)


def score_slowly(texts: Sequence[str], query: str, number: int) -> float:
    """Okapi BM25 straight from the formula, k1 = 1.2 and b = 0.75."""
    documents = [text.split() for text in texts]
    mean = sum(len(d) for d in documents) / len(documents)
    total = 0.0
    for word in set(query.split()):
        holders = sum(word in d for d in documents)
        count = documents[number].count(word)
        if count:
            idf = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
            length = 1 - 0.75 + 0.75 * len(documents[number]) / mean
            total += idf * count * 2.2 / (count + 1.2 * length)
    return total


@given(TEXTS, QUERIES)
def test_scores_match_the_formula(texts: list[str], query: str) -> None:
    ranked = SearchIndex(texts).rank(query, len(texts))
    expected = {n: score_slowly(texts, query, n) for n in range(len(texts))}
    assert {n for n, _ in ranked} == {n for n, score in expected.items() if score > 0}
    for number, score in ranked:
        assert math.isclose(score, expected[number], rel_tol=1e-12)
    scores = [score for _, score in ranked]
    assert scores == sorted(scores, reverse=True)


def test_ties_keep_the_documents_order_and_limit_cuts() -> None:
    index = SearchIndex(["amber ship", "cedar", "amber town", "amber guild"])
    assert [n for n, _ in index.rank("amber", 9)] == [0, 2, 3]
    assert [n for n, _ in index.rank("amber", 2)] == [0, 2]


def test_a_rare_word_outweighs_a_common_one_and_case_does_not_matter() -> None:
    index = SearchIndex(["town amber", "town cedar", "town otter"])
    assert index.rank("the TOWN Cedar", 1)[0][0] == 1


def test_nothing_matches_nothing() -> None:
    assert SearchIndex(["amber"]).rank("cedar", 3) == []
    assert SearchIndex(["amber"]).rank("", 3) == []
    assert SearchIndex([]).rank("amber", 3) == []
    assert SearchIndex(["", ""]).rank("amber", 3) == []


def test_tokens_are_lowercase_words() -> None:
    assert split_tokens('The town/amber: "Cedar", 12.') == ["the", "town", "amber", "cedar", "12"]
