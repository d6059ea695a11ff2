"""A small BM25 index over short documents, ours, in memory and deterministic.

Neighbours: `knowledge_research` searches its corpus with it. It leaves out stemming, phrases,
snippets and persistence: the documents are few, short and lowercase.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

K1 = 1.2
B = 0.75

_TOKEN = re.compile(r"[a-z0-9]+")


def split_tokens(text: str) -> list[str]:
    """The lowercase words and numbers of a text, in order."""
    return _TOKEN.findall(text.lower())


class SearchIndex:
    """Ranks documents for a query by BM25, ties in the documents' order.

    The inverse document frequency has the `1 +` inside the logarithm, so that a word found in
    most documents still never counts against one.

    Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond"
    (2009), section 3.4.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        tokens = [split_tokens(text) for text in texts]
        lengths = [len(words) for words in tokens]
        mean_length = sum(lengths) / max(1, len(lengths))
        counts: dict[str, list[tuple[int, int]]] = {}
        for number, words in enumerate(tokens):
            for word, count in Counter(words).items():
                counts.setdefault(word, []).append((number, count))
        # Weights do not depend on the query, so they are worked out once, here.
        self._postings = {
            word: _weigh(found, lengths, mean_length) for word, found in counts.items()
        }

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        """The best documents' numbers with their scores; a repeated query word counts once."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(split_tokens(query)):
            for number, weight in self._postings.get(word, ()):
                scores[number] = scores.get(number, 0.0) + weight
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:limit]


def _weigh(
    found: Sequence[tuple[int, int]], lengths: Sequence[int], mean_length: float
) -> list[tuple[int, float]]:
    """One word's share of the score of each document that holds it."""
    rarity = math.log(1 + (len(lengths) - len(found) + 0.5) / (len(found) + 0.5))
    return [
        (n, rarity * c * (K1 + 1) / (c + K1 * (1 - B + B * lengths[n] / mean_length)))
        for n, c in found
    ]
