"""Who answers in an episode: a model that samples tokens, or a script that plays a solution.

`agent/loop.py` drives a `Policy`; `agent/record.py` reads what `ModelPolicy` sampled. The chat
template is behind `Chat`, the engine behind `Generator`. No tokenizer and no torch here.
"""

import hashlib
from collections.abc import Sequence
from typing import Protocol

from limosa.base.errors import EngineError, LimosaError
from limosa.base.interfaces import Chat, GenerateRequest, Generation, Generator, Script
from limosa.base.messages import Message, ParsedReply, ToolResult, ToolSpec
from limosa.base.task import Task


class OutOfRoom(LimosaError):
    """The policy cannot go on; `reply` is what it still said, where it said anything."""

    def __init__(self, reason: str, reply: ParsedReply | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reply = reply


class Policy(Protocol):
    """One side of one conversation; used once."""

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """Take the opening messages and the tools."""
        ...

    async def reply(self) -> ParsedReply:
        """Say the next thing. Raises: OutOfRoom, InfrastructureError."""
        ...

    def observe(self, results: Sequence[ToolResult]) -> None:
        """Take the results of the last reply's calls, one for each call."""
        ...

    def end(self) -> None:
        """The episode is over, however it ended; may be called before `begin`."""
        ...


class ModelPolicy:
    """A model in a conversation: token-in, token-out, nothing sampled is ever tokenised again.

    The prompt of each turn is exactly the ids so far and the ids of the new results. Results are
    added only when the model answers them, so a record always ends in a sampled token.
    """

    def __init__(
        self,
        generator: Generator,
        chat: Chat,
        task: Task,
        *,
        conversation: str,
        group: str,
        temperature: float,
        seed: int,
        context_window: int,
    ) -> None:
        self.token_ids: list[int] = []
        self.sampled: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.prompt_tokens = 0
        self.temperature = temperature
        self._generator = generator
        self._chat = chat
        self._conversation = conversation
        self._group = group
        self._seed = seed
        self._max_new_tokens = task.limits.max_new_tokens
        self._max_total_tokens = min(context_window, task.limits.max_total_tokens)
        self._pending_ids: list[int] = []
        self._stopped = True
        self._turn = 0

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """Take the opening messages and the tools."""
        self._pending_ids = self._chat.encode_prompt(messages, tools)
        self.prompt_tokens = len(self._pending_ids)

    async def reply(self) -> ParsedReply:
        """Sample one reply. Raises: OutOfRoom, EngineError."""
        room = self._max_total_tokens - len(self.token_ids) - len(self._pending_ids)
        if room <= 0:
            if not self.token_ids:  # the record must hold the prompt even where nothing fits
                self._take_pending()
            raise OutOfRoom(f"no room for a reply within {self._max_total_tokens} tokens")
        self._take_pending()
        bound = min(self._max_new_tokens, room)
        request = GenerateRequest(
            prompt_ids=tuple(self.token_ids),
            conversation=self._conversation,
            group=self._group,
            max_new_tokens=bound,
            temperature=self.temperature,
            seed=derive_seed(self._seed, self._turn),
            stop_ids=self._chat.stop_ids,
        )
        self._turn += 1
        generation = await self._generator.generate(request)
        self._take_generation(generation, bound)
        parsed = self._chat.parse_reply(generation.token_ids)
        if not self._stopped and not parsed.calls:
            raise OutOfRoom(f"the reply did not end within {bound} tokens", parsed)
        return parsed

    def observe(self, results: Sequence[ToolResult]) -> None:
        """Keep the results' ids for the next prompt."""
        self._pending_ids = self._chat.encode_results(results, stopped=self._stopped)

    def end(self) -> None:
        """Let the engine forget the conversation."""
        self._generator.release(self._conversation)

    def _take_pending(self) -> None:
        count = len(self._pending_ids)
        self.token_ids += self._pending_ids
        self.sampled += [0] * count
        self.logprobs += [0.0] * count
        self.versions += [-1] * count
        self._pending_ids = []

    def _take_generation(self, generation: Generation, bound: int) -> None:
        count = len(generation.token_ids)
        if not len(generation.logprobs) == len(generation.versions) == count <= bound:
            raise EngineError(
                f"the engine gave {count} tokens, {len(generation.logprobs)} log-probabilities and "
                f"{len(generation.versions)} versions, expected equal numbers of at most {bound}"
            )
        self.token_ids += generation.token_ids
        self.sampled += [1] * count
        self.logprobs += generation.logprobs
        self.versions += generation.versions
        self._stopped = generation.finish_reason == "stop"


class ScriptBudget:
    """Counts what a script's conversation costs a model in tokens, by `ModelPolicy`'s bounds.

    Units: tokens, stop ids included. Counting goes on past a bound, so that the finding
    says how much would be needed.
    """

    def __init__(self, chat: Chat, task: Task, *, context_window: int) -> None:
        self._chat = chat
        self._max_new_tokens = task.limits.max_new_tokens
        self._max_total_tokens = min(context_window, task.limits.max_total_tokens)
        self._total_tokens = 0
        self._longest_reply_tokens = 0

    def add_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """Count the opening."""
        self._total_tokens += len(self._chat.encode_prompt(messages, tools))

    def add_reply(self, message: Message) -> None:
        """Count a reply."""
        count = len(self._chat.encode_reply(message))
        self._total_tokens += count
        # A call that is cut just behind its end is run all the same, see `ModelPolicy.reply`.
        said = count - 1 if message.tool_calls else count
        self._longest_reply_tokens = max(self._longest_reply_tokens, said)

    def add_results(self, results: Sequence[ToolResult]) -> None:
        """Count the results of the last reply's calls."""
        self._total_tokens += len(self._chat.encode_results(results, stopped=True))

    def find_excess(self) -> str:
        """What does not fit, empty where all does."""
        if self._total_tokens > self._max_total_tokens:
            return f"it needs {self._total_tokens} tokens, at most {self._max_total_tokens} fit"
        if self._longest_reply_tokens > self._max_new_tokens:
            return (
                f"it needs {self._longest_reply_tokens} tokens for one reply, at most "
                f"{self._max_new_tokens} fit"
            )
        return ""


class ScriptPolicy:
    """Plays a script: reference solutions, demonstrations, quality checks.

    With a `budget`, a script that a model could not have said within its tokens is out of room at
    its final answer; without one no tokenizer is needed.
    """

    def __init__(self, script: Script, budget: ScriptBudget | None = None) -> None:
        self._script = script
        self._budget = budget
        self._results: list[ToolResult] | None = None

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """Count the opening; a script knows its task."""
        if self._budget is not None:
            self._budget.add_prompt(messages, tools)

    async def reply(self) -> ParsedReply:
        """The script's next message.

        Raises: OutOfRoom where the script has ended, or its answer comes at too many tokens.
        """
        try:
            if self._results is None:
                message = next(self._script)
            else:
                message = self._script.send(self._results)
        except StopIteration:
            raise OutOfRoom("the script ended without a final answer") from None
        self._results = []
        reply = ParsedReply(message.content, message.tool_calls)
        if self._budget is not None:
            self._budget.add_reply(message)
            excess = "" if message.tool_calls else self._budget.find_excess()
            if excess:
                raise OutOfRoom(excess, reply)
        return reply

    def observe(self, results: Sequence[ToolResult]) -> None:
        """Keep the results for the script's next step."""
        self._results = list(results)
        if self._budget is not None:
            self._budget.add_results(results)

    def end(self) -> None:
        """Close the script."""
        self._script.close()


def derive_seed(seed: int, turn: int) -> int:
    """A seed for one turn: a hash, so that neighbouring seeds and turns share no draws."""
    digest = hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
