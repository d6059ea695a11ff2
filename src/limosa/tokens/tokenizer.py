"""Trains the tokenizer of our own base model: few tokens for tool calls, one token for a word.

A word has one token wherever it stands, so that a small model copies a name from its instruction
into a command by looking it up, not by knowing pairs of variants. The fixed parts of a tool call
are one token each, and so is each role's opening. Neighbours: `limosa_chat.jinja` is the template
that is saved beside the tokenizer; `tokens/chat.py` reads the folder.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from limosa.base.errors import UserError

PAD_TOKEN = "<|pad|>"
END_TOKEN = "<|im_end|>"
SPECIAL_TOKENS = (
    PAD_TOKEN,
    END_TOKEN,
    "<|im_start|>",
    # The longest added token wins, so a role's opening is one token though it reads as ChatML.
    *(f"<|im_start|>{role}\n" for role in ("system", "user", "assistant", "tool")),
)
# Not special: a decoder that drops special tokens must leave a call readable.
TAG_TOKENS = ("<tool_call>", "</tool_call>")
SCAFFOLDS = (
    '{"name": "',
    '", "arguments": {"',
    '", "arguments": {}}',
    '"}}',
    '": "',
    '", "',
)
PROSE_WORDS = 200
TEMPLATE_FILE = "limosa_chat.jinja"

_SCAFFOLD_WEIGHT = 10_000
_WORD = r"[A-Z]?[a-z]++|[A-Z]++"
_SIGNS = ("&&", "||", ">>", "<<", "==", "!=", "<=", ">=", "->", "()", "):", "**", "//", "--")
_SPACED_WORD = re.compile(r"( ?)(?<![A-Za-z])([A-Z]?[a-z]+|[A-Z]+)(?![A-Za-z])")


def train_tokenizer(texts: Iterable[str], vocabulary_size: int, folder: Path) -> Path:
    """Train byte-level BPE on `texts`, and save it to `folder` for transformers' AutoTokenizer.

    Deterministic. `vocabulary_size` counts the special tokens, the tags and the 256 bytes.

    Raises: UserError where the vocabulary has no room for the fixed parts.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    fixed = len(SPECIAL_TOKENS) + len(TAG_TOKENS) + 256 + sum(map(len, SCAFFOLDS))
    if vocabulary_size < fixed:
        hint = f"give a vocabulary_size of {fixed} at least; about 2,000 serves a small model"
        raise UserError(f"vocabulary_size is {vocabulary_size}, expected >= {fixed}", hint=hint)
    kept = list(texts)
    backend: Any = Tokenizer(models.BPE())
    pattern = Regex(make_pattern(find_prose_words(kept)))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(TAG_TOKENS),
        min_frequency=2,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_add_scaffolds(kept), trainer)
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAG_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_TOKEN,
        pad_token=PAD_TOKEN,
        clean_up_tokenization_spaces=False,
        chat_template=Path(__file__).with_name(TEMPLATE_FILE).read_text(encoding="utf-8"),
    )
    tokenizer.save_pretrained(folder)
    return folder


def find_prose_words(texts: Iterable[str]) -> list[str]:
    """The commonest words that stand behind a space nearly always: these may take it along.

    A word that also stands in quotes, paths or at the start of a line is a name and may not.
    """
    bare: Counter[str] = Counter()
    spaced: Counter[str] = Counter()
    for text in texts:
        for space, word in _SPACED_WORD.findall(text):
            (spaced if space else bare)[word] += 1
    prose = [word for word, count in spaced.items() if count >= max(2, 20 * bare[word])]
    return sorted(prose, key=lambda word: (-spaced[word], word))[:PROSE_WORDS]


def make_pattern(prose_words: Sequence[str]) -> str:
    """The pattern (Oniguruma) of the chunks that BPE may merge within; tried in this order."""
    signs = "|".join(map(re.escape, _SIGNS))
    alternatives = [
        *map(re.escape, SCAFFOLDS),
        r"\n",
        r"\\[nrt\"\\]",  # escapes in JSON, lest the n of \n stick to the word behind it
        *_group_prose(prose_words),
        _WORD,
        r"[0-9]",
        r" {2,}+",
        rf" ?(?:{signs})",
        r" ?[!-/:-@\[-`{-~]",
        r" ",
        r"[^\x00-\x7f]++",
    ]
    return "|".join(alternatives)


def _group_prose(words: Sequence[str]) -> Iterator[str]:
    """One alternative for all prose words, by first letter: a flat list would be tried in full."""
    letters: dict[str, list[str]] = {}
    for word in sorted(words):
        letters.setdefault(word[0], []).append(word[1:])
    if letters:
        groups = (f"{first}(?:{'|'.join(rests)})" for first, rests in letters.items())
        yield rf" (?:{'|'.join(groups)})(?![A-Za-z])"


def _add_scaffolds(texts: Sequence[str]) -> Iterator[str]:
    """The texts, and the fixed parts so often that each is merged to one token."""
    yield from texts
    for scaffold in SCAFFOLDS:
        for _ in range(_SCAFFOLD_WEIGHT):
            yield scaffold
