"""YAML text -> a tree of nodes that know their line and column; only the plain part of YAML.

It knows no key of a spec: it would read any small document of mappings, lists and scalars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import yaml

from pagegen.errors import Position, SpecError
from pagegen.yaml_scalar import Scalar, read_scalar

MAX_DEPTH: Final = 4  # a spec nests mapping, mapping, list; more would be a mistake or an attack
_LINE_BREAK: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # what PyYAML counts as a line


@dataclass(frozen=True)
class Node:
    """A value and where it stands. Mappings keep the order of the text."""

    position: Position
    value: Scalar | dict[str, Node] | list[Node]
    key: Position | None = None  # where its key stands; None for the root and for list items

    @property
    def begin(self) -> Position:
        """Where a reader looks for it: at its key if it has one."""
        return self.key or self.position

    def plain(self) -> object:
        """The same tree in dicts, lists and scalar values."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value.value

    def got(self) -> str:
        """What it is, for messages: `16.0 is a number with a fraction`."""
        if isinstance(self.value, Scalar):
            return f"{self.value.shown()} is {self.value.got}".lstrip()
        return f"this is a {'mapping' if isinstance(self.value, dict) else 'list'}"

    def find(self, path: tuple[str | int, ...]) -> Node:
        """The node at `path`, or the nearest one above it when the text does not have it."""
        node = self
        for step in path:
            if isinstance(node.value, dict) and step in node.value:
                node = node.value[str(step)]
            elif isinstance(node.value, list) and isinstance(step, int):
                node = node.value[step]
            else:
                break
        return node


def read_tree(text: str, path: str) -> Node:
    """The one document in `text`, a mapping. `path` names it in errors.

    Raises SpecError for a syntax error, an empty text, several documents, tabs, duplicate keys,
    merge keys, anchors, aliases, tags and directives.
    """
    reader = _Reader(text, path)
    try:
        return reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reasons = [reason for reason in (error.problem, error.context) if reason]
        raise SpecError(
            f"not YAML: {', '.join(reasons)}",
            position=reader.position(mark.line, mark.column) if mark else reader.position(0, 0),
        ) from error
    except yaml.reader.ReaderError as error:
        line, column = reader.locate(int(error.position))
        raise SpecError(
            f"not YAML: the character {str(text[error.position])!r} cannot stand in a text file",
            position=reader.position(line, column),
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # e.g. the escape "\UFFFFFFFF"
        raise SpecError(f"not YAML: {error}", position=reader.position(0, 0)) from error


class _Reader:
    """Walks PyYAML's events: unlike its nodes they still show anchors, aliases and tags."""

    def __init__(self, text: str, path: str) -> None:
        self.text = text
        self.path = path
        self.lines = _LINE_BREAK.split(text)
        self.events: Iterator[yaml.Event] = iter(())

    def position(self, line: int, column: int) -> Position:
        """A Position from counts that start at 0."""
        text = self.lines[min(line, len(self.lines) - 1)].replace("\t", " ")
        return Position(self.path, line + 1, column + 1, text)

    def locate(self, index: int) -> tuple[int, int]:
        """Line and column, from 0, of a character."""
        before = _LINE_BREAK.split(self.text[:index])
        return len(before) - 1, len(before[-1])

    def at(self, event: yaml.Event) -> Position:
        """Where an event begins."""
        mark = event.start_mark
        return self.position(mark.line, mark.column) if mark else self.position(0, 0)

    def document(self) -> Node:
        """The one document of the text."""
        if "\t" in self.text:
            place = self.locate(self.text.index("\t"))
            raise SpecError("a tab", remedy="use spaces", position=self.position(*place))
        self.events = iter(yaml.parse(self.text, Loader=yaml.SafeLoader))
        next(self.events)  # the stream's start
        start = next(self.events)
        if not isinstance(start, yaml.DocumentStartEvent):
            raise SpecError("an empty file", allowed="a spec", position=self.position(0, 0))
        if start.version or start.tags:
            raise SpecError("a % directive", remedy="delete the line", position=self.at(start))
        root = self.node(next(self.events), 0)
        if not isinstance(root.value, dict):
            raise SpecError(
                f"not a spec: {root.got()}",
                allowed="a mapping of keys to values at top level",
                position=root.position,
            )
        next(self.events)  # the document's end
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise SpecError(
                "a second document", remedy="one spec per file", position=self.at(after)
            )
        return root

    def node(self, event: yaml.Event, depth: int, key: Position | None = None) -> Node:
        """The node that begins with `event`."""
        position = self.at(event)
        self.refuse_indirection(event)
        if isinstance(event, yaml.ScalarEvent):
            return Node(position, read_scalar(event.value, quoted=event.style is not None), key)
        if depth == MAX_DEPTH:
            raise SpecError("nested too deep", allowed=f"{MAX_DEPTH} levels", position=position)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(item := next(self.events), yaml.SequenceEndEvent):
                items.append(self.node(item, depth + 1))
            return Node(position, items, key)
        return Node(position, self.entries(depth + 1), key)

    def entries(self, depth: int) -> dict[str, Node]:
        """The keys and values of a mapping, up to its end."""
        entries: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            position = self.at(event)
            self.refuse_indirection(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise SpecError("a key that is not a word", position=position)
            name = str(event.value)
            if name == "<<" and event.style is None:
                raise SpecError(
                    "a merge key", remedy="write the keys out where they belong", position=position
                )
            if name in entries:
                raise SpecError(
                    f"the key {name!r} stands here again",
                    remedy=f"keep this or the one in line {entries[name].begin.line}",
                    position=position,
                )
            entries[name] = self.node(next(self.events), depth, key=position)
        return entries

    def refuse_indirection(self, event: yaml.Event) -> None:
        """A spec says each thing once, where it is meant."""
        if not isinstance(event, yaml.NodeEvent):
            return
        if isinstance(event, yaml.AliasEvent):
            raise SpecError(
                f"the alias *{event.anchor}", remedy="write the value out", position=self.at(event)
            )
        if event.anchor is not None:
            raise SpecError(
                f"the anchor &{event.anchor}", remedy="delete it", position=self.at(event)
            )
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag:
            raise SpecError(f"the tag {event.tag!r}", remedy="delete it", position=self.at(event))
