"""A text of SQL while it is read token by token and rewritten in place."""

from sqlglot.tokens import Token, TokenType

from actors.sql_tokens import tokenize
from actors.sql_words import BINARY

_NOT_SIGNS = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER)


class SqlText:
    """The text, the place up to which it was read, and what was replaced so far.

    Tokens are counted from the one to be read next: 0 is that one, -1 the one read last.
    Replacements are made from left to right; all else stays as it was.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = tokenize(text)
        self._next = 0
        self._pieces: list[str] = []
        self._copied = 0

    @property
    def read(self) -> int:
        """Number of tokens read."""
        return self._next

    @property
    def at_end(self) -> bool:
        """Whether every token was read."""
        return self._next >= len(self.tokens)

    def take(self, count: int = 1) -> Token:
        """Read `count` tokens; the last of them."""
        self._next += count
        return self.tokens[self._next - 1]

    def token(self, offset: int) -> Token:
        """The token at `offset`, which exists."""
        return self.tokens[self._next + offset]

    def kind(self, offset: int = 0) -> TokenType | None:
        """The kind of the token at `offset`; None if there is none."""
        index = self._next + offset
        return self.tokens[index].token_type if 0 <= index < len(self.tokens) else None

    def word(self, offset: int = 0) -> str:
        """The word at `offset` in upper case; empty if there is none."""
        return str(self.token(offset).text).upper() if self.kind(offset) == TokenType.VAR else ""

    def sign(self, offset: int = 0) -> str:
        """The operator or bracket at `offset`; empty if there is none."""
        kind = self.kind(offset)
        return "" if kind is None or kind in _NOT_SIGNS else str(self.token(offset).text)

    def replace(self, start: int, end: int, replacement: str) -> None:
        """Put `replacement` where the characters from `start` to before `end` are."""
        self._pieces.append(self.text[self._copied : start])
        self._pieces.append(replacement)
        self._copied = end

    def insert(self, position: int, addition: str) -> None:
        """Put `addition` before the character at `position`."""
        self.replace(position, position, addition)

    def keep_apart(self) -> None:
        """Put a space before the operator just read if it touches the one before it.

        Lance knows operators that we do not, and would read both as one of them.
        """
        token = self.token(-1)
        if self.sign(-2) in BINARY and self.token(-2).end + 1 == token.start:
            self.insert(token.start, " ")

    def rewritten(self) -> str:
        """The text with all replacements."""
        return "".join([*self._pieces, self.text[self._copied :]])
