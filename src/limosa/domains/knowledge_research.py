"""Questions over the shipped documents, reached only by searching and opening.

`atlas` holds the documents. An answer counts only where the document that states it was opened in
the same episode, so what a policy remembers or guesses earns nothing. No code runs: no sandbox.
Leaves out partial credit and free-form answers.
"""

import re
import sys
from collections.abc import Generator, Mapping
from random import Random
from zlib import crc32

from limosa.base.errors import UserError
from limosa.base.interfaces import SandboxProvider, Script, Verdict
from limosa.base.messages import Message, ToolCall, ToolResult
from limosa.base.task import SPLIT_OFFSETS, Limits, Task
from limosa.domains import answers, search_index
from limosa.domains.answers import normalise_answer
from limosa.domains.atlas import ATTRIBUTES, Corpus, load_corpus
from limosa.domains.toolset import Toolset, make_error, make_spec
from limosa.domains.versions import environment_version, read_source

HITS = 4
# One question in this many is asked in evaluation only.
HELD_OUT_SHARE = 5

SYSTEM = "Search, open the source, then answer with one word."
TEMPLATES = (
    "What is the {asked} of {subject}?",
    "Find the {asked} of {subject}.",
    "Tell me the {asked} of {subject}.",
    "For {subject}, name the {asked}.",
)
LIMITS: Mapping[str, Limits] = {
    "single_hop": Limits(max_turns=8, max_new_tokens=48, max_total_tokens=1024, timeout_s=120.0),
    "two_hop": Limits(max_turns=12, max_new_tokens=48, max_total_tokens=1024, timeout_s=120.0),
}

# How often the novice errs at each decision. `guess_*`: answers from the list of hits;
# `first_hit`: opens the first hit though another kind is asked for; `persist`: then answers from
# that document; `wrong_fact`: reads off the first fact; `one_hop`: takes the first link for the
# answer.
SLIPS: Mapping[str, float] = {
    "guess_first": 0.15,
    "guess_second": 0.1,
    "first_hit": 0.5,
    "persist": 0.5,
    "wrong_fact": 0.05,
    "one_hop": 0.25,
}

SEARCH = make_spec("search", "List documents.", query="string")
OPEN = make_spec("open", "Read a hit.", document="string")

_VALUE = re.compile(r'(\w+) "(\w+)"')


class KnowledgeResearch:
    """Questions of one or two hops; `image` is None, as nothing runs."""

    name = "knowledge_research"
    stages: tuple[str, ...] = ("single_hop", "two_hop")
    image: str | None = None

    def make_task(self, stage: str, seed: int) -> Task:
        """The question of a seed; no evaluation seed asks what another split may ask.

        Raises: UserError for a stage unknown.
        """
        if stage not in self.stages:
            hint = f"stages of {self.name}: {', '.join(self.stages)}"
            raise UserError(f"stage {stage!r} of {self.name} is not known", hint=hint)
        rng = Random(f"{self.name}/{stage}/{seed}")
        corpus = load_corpus()
        is_held_out = SPLIT_OFFSETS["eval"] <= seed < SPLIT_OFFSETS["demo"]
        while True:
            hops = _draw_hops(rng, corpus, 1 if stage == "single_hop" else 2)
            if hops and _belongs_to_evaluation(hops) == is_held_out:
                break
        source, attribute = hops[-1]
        return Task(
            domain=self.name,
            stage=stage,
            seed=seed,
            instruction=_phrase_question(rng, hops),
            data={
                "hops": [list(hop) for hop in hops],
                "source": source,
                "answer": corpus.by_id[source].facts[attribute],
            },
            limits=LIMITS[stage],
        )

    def make_environment(self, task: Task, sandboxes: SandboxProvider) -> "ResearchEnvironment":
        """A fresh environment; the provider is not used."""
        return ResearchEnvironment(task, load_corpus())

    def play_reference(self, task: Task) -> Script:
        """Search, open and read each hop of the question."""
        name = ""
        for identifier, attribute in task.data["hops"]:
            kind, subject = identifier.split("/")
            name = name or subject
            hits = yield from _search(name)
            if f"{kind}/{name}" not in hits:
                hits = yield from _search(f"{kind}/{name}")
            text = yield from _open(f"{kind}/{name}")
            name = _read_facts(text)[attribute]
        yield Message("assistant", name)

    def play_novice(self, task: Task, rng: Random) -> Script:
        """Research that slips as `SLIPS` says."""
        name = ""
        hops = task.data["hops"]
        for number, (identifier, attribute) in enumerate(hops):
            kind, subject = identifier.split("/")
            name = name or subject
            hits = yield from _search(name)
            if rng.random() < SLIPS["guess_second" if number else "guess_first"]:
                name = _guess(hits, name)
                break
            text = yield from _open_as_novice(rng, hits, f"{kind}/{name}")
            has_slipped = rng.random() < SLIPS["wrong_fact"]
            value = _read_first(text) if has_slipped else _read_facts(text).get(attribute, "")
            if not value:
                # The wrong kind of document was kept: whatever it states first must do.
                name = _read_first(text)
                break
            name = value
            if number + 1 < len(hops) and rng.random() < SLIPS["one_hop"]:
                break
        yield Message("assistant", name)


class ResearchEnvironment:
    """The corpus behind two tools; remembers what this episode was shown and opened."""

    def __init__(self, task: Task, corpus: Corpus) -> None:
        self._task = task
        self._corpus = corpus
        self._shown: set[str] = set()
        self._opened: set[str] = set()
        self._toolset = Toolset([(SEARCH, self._search), (OPEN, self._open)])
        self.tools = self._toolset.specs
        policy = {"corpus": corpus.digest, "hits": HITS, "network": "none"}
        source = read_source(sys.modules[__name__], answers, search_index)
        self.version = environment_version("", task, source, policy)

    async def start(self) -> list[Message]:
        """The rule and the question."""
        return [Message("system", SYSTEM), Message("user", self._task.instruction)]

    async def call(self, call: ToolCall) -> ToolResult:
        """Run `search` or `open`."""
        return await self._toolset.call(call)

    async def verify(self, answer: str) -> Verdict:
        """Full marks for the right word whose source was opened; else none."""
        is_right = normalise_answer(answer) == self._task.data["answer"]
        is_opened = self._task.data["source"] in self._opened
        solved = is_right and is_opened
        components = {"answer_right": float(is_right), "source_opened": float(is_opened)}
        return Verdict(solved, float(solved), components)

    async def close(self) -> None:
        """Nothing is held."""

    async def _search(self, query: str) -> ToolResult:
        hits = self._corpus.search(query, HITS)
        self._shown.update(hits)
        return ToolResult("\n".join(hits)) if hits else make_error("no hits")

    async def _open(self, document: str) -> ToolResult:
        # Ids can be guessed from a question, so only what a search has shown can be opened.
        if document not in self._shown:
            return make_error("not among the hits")
        self._opened.add(document)
        return ToolResult(self._corpus.by_id[document].text)


def _draw_hops(rng: Random, corpus: Corpus, count: int) -> list[tuple[str, str]]:
    """Document and attribute of each hop; empty where the draw makes no good question."""
    first = rng.choice(corpus.documents)
    if count == 1:
        return [(first.id, rng.choice(list(ATTRIBUTES[first.kind])))]
    links = [(a, kind) for a, kind in ATTRIBUTES[first.kind].items() if kind]
    attribute, kind = rng.choice(links)
    second = corpus.by_id[f"{kind}/{first.facts[attribute]}"]
    asked = rng.choice(list(ATTRIBUTES[kind]))
    # An answer that the first document or the question holds would need no second hop.
    if second.facts[asked] in {first.name, *first.facts.values()}:
        return []
    return [(first.id, attribute), (second.id, asked)]


def _belongs_to_evaluation(hops: list[tuple[str, str]]) -> bool:
    key = " ".join([hops[0][0], *(attribute for _, attribute in hops)])
    return crc32(key.encode()) % HELD_OUT_SHARE == 0


def _phrase_question(rng: Random, hops: list[tuple[str, str]]) -> str:
    kind, name = hops[0][0].split("/")
    subject = f'the {kind} "{name}"'
    for _, attribute in hops[:-1]:
        subject = f"the {attribute} of {subject}"
    return rng.choice(TEMPLATES).format(asked=hops[-1][1], subject=subject)


def _search(query: str) -> Generator[Message, list[ToolResult], list[str]]:
    results = yield Message("assistant", "", (ToolCall("search", {"query": query}),))
    return [] if results[0].is_error else results[0].content.splitlines()


def _open(document: str) -> Generator[Message, list[ToolResult], str]:
    results = yield Message("assistant", "", (ToolCall("open", {"document": document}),))
    return results[0].content


def _open_as_novice(
    rng: Random, hits: list[str], wanted: str
) -> Generator[Message, list[ToolResult], str]:
    """Open a hit; where that is the wrong one, perhaps notice and open another."""
    if wanted not in hits:
        # An earlier slip led astray.
        return (yield from _open(hits[0]))
    if hits[0] == wanted or rng.random() >= SLIPS["first_hit"]:
        return (yield from _open(wanted))
    text = yield from _open(hits[0])
    if rng.random() < SLIPS["persist"]:
        return text
    return (yield from _open(wanted))


def _read_facts(text: str) -> dict[str, str]:
    """The quoted values of a text by the word before each, in the text's order."""
    pairs: list[tuple[str, str]] = _VALUE.findall(text)
    return dict(pairs)


def _read_first(text: str) -> str:
    """The first fact of a text, whatever its attribute; a kind's word may introduce its name."""
    known = {a for attributes in ATTRIBUTES.values() for a in attributes} - set(ATTRIBUTES)
    return next(value for key, value in _read_facts(text).items() if key in known)


def _guess(hits: list[str], name: str) -> str:
    """A name from the list of hits other than the one searched for, or the first hit's."""
    names = [hit.split("/")[1] for hit in hits]
    return next((other for other in names if other != name), names[0])
