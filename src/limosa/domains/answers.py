"""How a one-word answer is read before it is compared; part of what a verifier's version hashes.

Shared by the domains whose answers are words. Leaves out numbers and free text.
"""


def normalise_answer(answer: str) -> str:
    """Lowercase, without outer spaces, quotes and closing punctuation."""
    return answer.strip().strip("\"'`.,!").lower()
