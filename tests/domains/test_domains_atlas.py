import re
import time
from importlib import resources
from pathlib import Path

import pytest

from limosa.domains.atlas import ATTRIBUTES, COUNTS, KINDS_A_NAME, load_corpus, write_corpus
from limosa.domains.words import WORDS


def test_the_shipped_file_is_what_the_generator_writes(tmp_path: Path) -> None:
    write_corpus(tmp_path / "again.jsonl")
    shipped = resources.files("limosa.domains") / "corpus" / "atlas.jsonl"
    # Where words.py or atlas.py changed on purpose: python -m limosa.domains.atlas FILE
    assert (tmp_path / "again.jsonl").read_bytes() == shipped.read_bytes()


def test_every_fact_is_stated_once_in_its_text() -> None:
    for document in load_corpus().documents:
        assert set(document.facts) == set(ATTRIBUTES[document.kind])
        for attribute, value in document.facts.items():
            assert document.text.count(f'{attribute} "{value}"') == 1
            assert len(re.findall(rf"\b{value}\b", document.text)) == 1
            assert value in WORDS
        assert f'"{document.name}"' in document.text
        assert 20 <= len(document.text.split()) <= 40


def test_links_lead_to_documents_and_agree() -> None:
    corpus = load_corpus()
    assert {k: sum(d.kind == k for d in corpus.documents) for k in COUNTS} == dict(COUNTS)
    for document in corpus.documents:
        for attribute, kind in ATTRIBUTES[document.kind].items():
            if kind:
                assert f"{kind}/{document.facts[attribute]}" in corpus.by_id
        if document.kind == "guild":
            master = corpus.by_id[f"person/{document.facts['master']}"]
            assert master.facts["guild"] == document.name
        if document.kind == "river":
            mouth = corpus.by_id[f"town/{document.facts['mouth']}"]
            assert mouth.facts["river"] == document.name


def test_a_search_for_a_name_shows_every_kind_of_it_and_the_first_is_often_another() -> None:
    corpus = load_corpus()
    wrong_first = 0
    for document in corpus.documents:
        hits = corpus.search(document.name, KINDS_A_NAME)
        assert document.id in hits
        wrong_first += hits[0] != document.id
    assert 0.3 < wrong_first / len(corpus.documents) < 0.7


def test_a_search_takes_less_than_a_millisecond() -> None:
    corpus = load_corpus()
    # The best of several rounds: other work on the machine may slow any one of them.
    rounds = []
    for _ in range(5):
        started = time.perf_counter()
        for document in corpus.documents[:50]:
            corpus.search(document.name, 4)
        rounds.append((time.perf_counter() - started) / 50)
    assert min(rounds) < 1e-3


def test_the_corpus_cannot_be_changed() -> None:
    corpus = load_corpus()
    with pytest.raises(TypeError):
        corpus.documents[0].facts["founder"] = "amber"  # type: ignore[index]
