"""The fictional world that `knowledge_research` asks about: documents, their facts, their corpus.

`make_documents` invents the world from a seed, `write_corpus` makes the file that the package
ships (`python -m limosa.domains.atlas FILE`) and `load_corpus` reads it. Leaves out questions and
tools.
"""

import functools
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from types import MappingProxyType

from limosa.domains.search_index import SearchIndex, split_tokens
from limosa.domains.words import WORDS

CORPUS_FILE = "atlas.jsonl"
CORPUS_SEED = 20
NAMES_COUNT = 260
# At most three kinds share a name, so that a search for the name shows all of them.
KINDS_A_NAME = 3

COUNTS: Mapping[str, int] = {"person": 210, "town": 140, "ship": 120, "guild": 80, "river": 70}

# Attribute -> the kind of document its value names; "" where the value is just a word.
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "person": {"birthplace": "town", "guild": "guild", "nickname": "", "hobby": ""},
    "town": {"founder": "person", "river": "river", "emblem": "", "export": ""},
    "ship": {"captain": "person", "port": "town", "cargo": "", "figurehead": ""},
    "guild": {"master": "person", "seat": "town", "password": "", "mascot": ""},
    "river": {"mapper": "person", "mouth": "town", "legend": "", "bridge": ""},
}

# The word of the attribute always stands right before its quoted value.
SENTENCES: Mapping[str, tuple[str, ...]] = {
    "person": (
        'The person "{name}" gives as birthplace "{birthplace}" and belongs to the guild '
        '"{guild}". Friends use the nickname "{nickname}". Every free day goes to the hobby '
        '"{hobby}".',
        'Little is known about "{name}", a person of birthplace "{birthplace}" who serves the '
        'guild "{guild}", except the nickname "{nickname}" and the strange hobby "{hobby}".',
    ),
    "town": (
        'The town "{name}" honours its founder "{founder}". It lies on the river "{river}". The '
        'flag shows the emblem "{emblem}", and traders praise the export "{export}".',
        'A statue of the founder "{founder}" looks over "{name}", a quiet town on the river '
        '"{river}", which carved the emblem "{emblem}" on every box of its export "{export}".',
    ),
    "ship": (
        'The ship "{name}" obeys captain "{captain}" and winters in the port "{port}". It hauls '
        'the cargo "{cargo}". The bow bears the figurehead "{figurehead}".',
        'Under captain "{captain}" the old ship "{name}" leaves its port "{port}" each spring '
        'with the cargo "{cargo}" below deck and, above the waves, the figurehead '
        '"{figurehead}".',
    ),
    "guild": (
        'The guild "{name}" follows its master "{master}" and keeps its seat "{seat}". The door '
        'opens to the password "{password}". Members feed the mascot "{mascot}".',
        'Nobody joins the guild "{name}" unless the master "{master}" agrees: travel to the seat '
        '"{seat}", whisper the password "{password}", and bow before the mascot "{mascot}".',
    ),
    "river": (
        'The river "{name}" was first drawn by the mapper "{mapper}". It ends at its mouth '
        '"{mouth}". Children learn the legend "{legend}" under the bridge "{bridge}".',
        'When the mapper "{mapper}" followed the river "{name}" down to its mouth "{mouth}", an '
        'old ferryman told the legend "{legend}" and pointed at the bridge "{bridge}".',
    ),
}


@dataclass(frozen=True, slots=True)
class Document:
    """A document: its id `kind/name`, its text, and the facts that the text states."""

    id: str
    text: str
    facts: Mapping[str, str]

    @property
    def kind(self) -> str:
        """What the document is about: person, town, ship, guild or river."""
        return self.id.split("/")[0]

    @property
    def name(self) -> str:
        """The name of its subject, which other kinds may share."""
        return self.id.split("/")[1]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The shipped documents, by id, with their index and the digest of the file."""

    documents: tuple[Document, ...]
    by_id: Mapping[str, Document]
    index: SearchIndex
    digest: str

    def search(self, query: str, limit: int) -> list[str]:
        """Ids of the best hits, best first."""
        return [self.documents[number].id for number, _ in self.index.rank(query, limit)]


def make_documents(seed: int) -> list[Document]:
    """Invent the world of a seed: every linked document exists, and links agree."""
    rng = Random(f"atlas/{seed}")
    # A word that the sentences use themselves (river, bridge) names nothing.
    used = {token for texts in SENTENCES.values() for t in texts for token in split_tokens(t)}
    words = [word for word in WORDS if word not in used]
    names = _share_names(rng, rng.sample(words, NAMES_COUNT))
    facts: dict[str, dict[str, str]] = {}
    for kind in COUNTS:
        for name in names[kind]:
            facts[f"{kind}/{name}"] = _invent_facts(rng, kind, name, names, words)
    _align_links(rng, facts, "guild.master", "guild")
    _align_links(rng, facts, "river.mouth", "river")
    documents = []
    for identifier, values in facts.items():
        kind, name = identifier.split("/")
        text = rng.choice(SENTENCES[kind]).format(name=name, **values)
        documents.append(Document(identifier, text, values))
    rng.shuffle(documents)
    return documents


def to_lines(documents: Sequence[Document]) -> str:
    """The documents as JSON lines."""
    rows = ({"id": d.id, "text": d.text, "facts": dict(d.facts)} for d in documents)
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_corpus(path: Path) -> None:
    """Write the shipped corpus to a file; the same bytes every time."""
    path.write_text(to_lines(make_documents(CORPUS_SEED)), encoding="utf-8")


@functools.cache
def load_corpus() -> Corpus:
    """The shipped corpus, read and indexed at the first call."""
    file = resources.files("limosa.domains") / "corpus" / CORPUS_FILE
    data = file.read_bytes()
    documents = tuple(
        Document(row["id"], row["text"], MappingProxyType(row["facts"]))
        for row in map(json.loads, data.decode().splitlines())
    )
    return Corpus(
        documents=documents,
        by_id=MappingProxyType({d.id: d for d in documents}),
        # The id is indexed with the text: a subject counts more than a mention.
        index=SearchIndex([f"{d.id} {d.text}" for d in documents]),
        digest=hashlib.sha256(data).hexdigest(),
    )


def _share_names(rng: Random, names: Sequence[str]) -> dict[str, list[str]]:
    """Names of each kind, distinct within it; several kinds share a name, within the bound."""
    uses = dict.fromkeys(names, 0)
    shared: dict[str, list[str]] = {}
    for kind, count in COUNTS.items():
        free = [name for name in names if uses[name] < KINDS_A_NAME]
        shared[kind] = rng.sample(free, count)
        for name in shared[kind]:
            uses[name] += 1
    return shared


def _invent_facts(
    rng: Random,
    kind: str,
    name: str,
    names: Mapping[str, Sequence[str]],
    words: Sequence[str],
) -> dict[str, str]:
    """Values for every attribute, distinct, so that a text holds each answer once."""
    values: dict[str, str] = {}
    for attribute, target in ATTRIBUTES[kind].items():
        taken = {name, *values.values()}
        choices = names[target] if target else words
        values[attribute] = rng.choice([word for word in choices if word not in taken])
    return values


def _align_links(rng: Random, facts: dict[str, dict[str, str]], link: str, back: str) -> None:
    """Point `link` (as `guild.master`) at subjects of its own whose `back` points here again.

    So a master belongs to the guild, and a river's mouth lies on that river. No alignment may put
    a word twice into one text.
    """
    kind, attribute = link.split(".")
    target = ATTRIBUTES[kind][attribute]
    free = [identifier for identifier in facts if identifier.startswith(f"{target}/")]
    rng.shuffle(free)
    for identifier in [i for i in facts if i.startswith(f"{kind}/")]:
        name = identifier.split("/")[1]
        others = {name, *(v for k, v in facts[identifier].items() if k != attribute)}
        for candidate in free:
            subject = candidate.split("/")[1]
            theirs = {subject, *(v for k, v in facts[candidate].items() if k != back)}
            if subject not in others and name not in theirs:
                break
        else:
            raise AssertionError(f"no {target} left for the {attribute} of {identifier}")
        facts[identifier][attribute] = subject
        facts[candidate][back] = name
        free.remove(candidate)


if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]))
