"""Hostile patches: each breaks one rule of the format, and is in order otherwise."""

from __future__ import annotations

import json

from pulse_registry.errors import BaseMismatch, CorruptObject, UnsupportedFormat
from tests.security.attacks.edits import claim, group, header, levels, patch, put, table, words
from tests.security.attacks.forge import CELLS
from tests.security.attacks.row import Rows

GAP: Rows = {
    # the group's head
    "one changed cell more than are coded": (group(claim(201)), CorruptObject),
    "one changed cell less than are coded": (group(claim(199)), CorruptObject),
    "as many changed cells as the group has": (group(claim(CELLS)), CorruptObject),
    "more changed cells than the group has": (group(claim(CELLS + 1)), CorruptObject),
    "2^32 - 1 changed cells": (group(claim(2**32 - 1)), CorruptObject),
    "no changed cell": (group(claim(0)), CorruptObject),
    "a class": (group(lambda g, p: put(g, classes=[[200, 0]])), CorruptObject),
    "a class that is not there": (group(lambda g, p: put(g, n_classes=1)), CorruptObject),
    "255 classes": (group(lambda g, p: put(g, n_classes=255)), CorruptObject),
    "a first class": (group(lambda g, p: put(g, first=1)), CorruptObject),
    "tables of 65,535 bytes": (group(lambda g, p: put(g, tables_size=65535)), CorruptObject),
    "tables of no bytes": (group(lambda g, p: put(g, tables_size=0)), CorruptObject),
    "tables of two bytes less": (group(lambda g, p: put(g, tables_size=len(b"".join(g.tables)) - 2)), CorruptObject),
    "a byte more after the tables": (group(lambda g, p: put(g, padding=g.padding + b"\1")), CorruptObject),
    "a group of no bytes": (patch(lambda p: put(p, groups=[b""])), CorruptObject),
    "a group that ends in its head": (patch(lambda p: put(p, groups=[p.groups[0][:3]])), CorruptObject),
    "a group that ends in its tables": (patch(lambda p: put(p, groups=[p.groups[0][:20]])), CorruptObject),
    "a group with a byte behind it": (patch(lambda p: put(p, groups=[p.groups[0] + b"\0"])), CorruptObject),
    "a group with a word behind it": (patch(lambda p: put(p, groups=[p.groups[0] + b"\0\0"])), CorruptObject),
    "a group twice in one": (patch(lambda p: put(p, groups=[p.groups[0] * 2])), CorruptObject),
    # tables
    "a table of no symbols, which is needed": (table(0, bytes(2)), CorruptObject),
    "values without a table": (table(3, bytes(2)), CorruptObject),
    "no table of any context": (group(lambda g, p: put(g, tables=[bytes(2)] * 6, padding=b"")), CorruptObject),
    "a table more": (group(lambda g, p: put(g, tables=[*g.tables, bytes(2)])), CorruptObject),
    "a table less": (group(lambda g, p: put(g, tables=g.tables[:-1])), CorruptObject),
    "a gap symbol over 47": (table(0, levels(0, *[1] * 49)), CorruptObject),
    "gap symbol 255": (table(0, levels(255, 1)), CorruptObject),
    "a value symbol past 16 bits": (table(3, levels(0, *[1] * 61)), CorruptObject),
    "value symbol 251": (table(3, levels(251, 1)), CorruptObject),
    "a table of 255 symbols": (table(3, levels(0, *[1] * 255)), CorruptObject),
    "a table past symbol 255": (table(3, levels(250, *[1] * 20)), CorruptObject),
    "an empty table that begins late": (table(3, bytes((9, 0))), CorruptObject),
    "a first level of zero": (table(3, levels(0, 0, 1)), CorruptObject),
    "a last level of zero": (table(3, levels(0, 1, 0)), CorruptObject),
    "padding of a table that is not zero": (table(3, bytes((0, 1, 0x21))), CorruptObject),
    "gaps that are all as long as can be": (table(0, levels(47, 31)), CorruptObject),
    "distances that are all as wide as can be": (table(3, levels(58, 31)), CorruptObject),
    # words
    "no words": (words(lambda w: []), CorruptObject),
    "one word": (words(lambda w: w[:1]), CorruptObject),
    "the state alone": (words(lambda w: w[:2]), CorruptObject),
    "a word missing": (words(lambda w: w[:-1]), CorruptObject),
    "a word left over": (words(lambda w: [*w, 0]), CorruptObject),
    "6,000 words left over": (words(lambda w: w + [0] * 6_000), CorruptObject),
    "words of zeros": (words(lambda w: [0] * len(w)), CorruptObject),
    "words of ones": (words(lambda w: [0xFFFF] * len(w)), CorruptObject),
    "another state": (words(lambda w: [0, 0, *w[2:]]), CorruptObject),
    "a chunk of 65,535 words": (group(lambda g, p: put(g, sizes=[65535])), CorruptObject),
    "a chunk of no words": (group(lambda g, p: put(g, sizes=[0])), CorruptObject),
    "two chunks where there is one": (group(lambda g, p: put(g, sizes=[2, g.sizes[0] - 2])), CorruptObject),
    # the directory
    "a group that the layout does not have": (patch(lambda p: p.entries[0].__setitem__(0, 1)), CorruptObject),
    "group 2^32 - 1": (patch(lambda p: p.entries[0].__setitem__(0, 2**32 - 1)), CorruptObject),
    "the same group twice": (
        patch(
            lambda p: put(
                p,
                entries=[p.entries[0], list(p.entries[0])],
                groups=p.groups * 2,
                pulse=p.pulse | {"groups": 2, "changed": 400},
            )
        ),
        CorruptObject,
    ),
    "more groups than entries": (patch(lambda p: put(p, pulse=p.pulse | {"groups": 2})), CorruptObject),
    "2^62 groups": (patch(lambda p: put(p, pulse=p.pulse | {"groups": 2**62})), CorruptObject),
    "no entries": (patch(lambda p: put(p, entries=[], pulse=p.pulse | {"groups": 0, "changed": 0})), CorruptObject),
    "a coder that there is not": (patch(lambda p: p.entries[0].__setitem__(3, 2)), CorruptObject),
    "a group that is longer than the object": (
        patch(lambda p: (p.entries[0].__setitem__(2, 2**31), put(p, rehash=False))),
        CorruptObject,
    ),
    "a group of another hash": (
        patch(lambda p: (p.entries[0].__setitem__(4, bytes(32)), put(p, rehash=False))),
        CorruptObject,
    ),
    "another sum of old cells": (patch(lambda p: p.entries[0].__setitem__(5, 1)), BaseMismatch),
    "another sum of new cells": (patch(lambda p: p.entries[0].__setitem__(7, 1)), BaseMismatch),
    "both sums moved by the same": (
        patch(lambda p: [p.entries[0].__setitem__(n, p.entries[0][n] ^ 1) for n in (5, 7)]),
        BaseMismatch,
    ),
    # the patch's header
    "changed cells that are not the directory's": (patch(lambda p: p.pulse.update(changed=199)), CorruptObject),
    "2^62 changed cells": (patch(lambda p: p.pulse.update(changed=2**62)), CorruptObject),
    "another layout": (patch(lambda p: p.pulse.update(layout="0" * 64)), CorruptObject),
    "another base": (patch(lambda p: p.pulse.update(base=5)), CorruptObject),
    "another target": (patch(lambda p: p.pulse.update(target=5)), CorruptObject),
    "a field too many": (patch(lambda p: p.pulse.update(extra=1)), CorruptObject),
    "a newer format": (patch(lambda p: p.pulse.update(format="pulse-patch/3")), UnsupportedFormat),
    "another format": (patch(lambda p: p.pulse.update(format="pickle")), CorruptObject),
    "a third tensor": (
        patch(lambda p: p.document.update(x={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]})),
        CorruptObject,
    ),
    "a header nested 20,000 deep": (header(lambda h: b"[" * 20_000), CorruptObject),
    "metadata nested 20,000 deep": (
        header(lambda h: json.dumps({"__metadata__": {"pulse": "[" * 20_000}}).encode()),
        CorruptObject,
    ),
    "a header that is a list": (header(lambda h: b"[" + h + b"]"), CorruptObject),
    "a header that is a number": (header(lambda h: b"9" * 5000), CorruptObject),
    "a header of nothing": (header(lambda h: b" "), CorruptObject),
    "a header without metadata": (header(lambda h: b"{}"), CorruptObject),
    "metadata that are a list": (header(lambda h: b'{"__metadata__":[1]}'), CorruptObject),
    "metadata that are a number": (header(lambda h: b'{"__metadata__":{"pulse":1}}'), CorruptObject),
    "metadata that are no text": (header(lambda h: b'{"__metadata__":{"pulse":"\\ud800"}}'), CorruptObject),
    "a header that is no UTF-8": (header(lambda h: b"\xff\xfe" + h), CorruptObject),
    "a header in other words": (header(lambda h: h.replace(b":", b": ", 1)), CorruptObject),
    "a header with a key twice": (header(lambda h: h[:-1] + b',"groups":1}'), CorruptObject),
}

CLASS: Rows = {
    "no classes": (group(lambda g, p: put(g, n_classes=0)), CorruptObject),
    "33 classes": (group(lambda g, p: put(g, classes=g.classes + [[0, 0]] * (33 - len(g.classes)))), CorruptObject),
    "255 classes that are not there": (group(lambda g, p: put(g, n_classes=255)), CorruptObject),
    "classes past 255": (
        group(lambda g, p: put(g, first=255, classes=[*g.classes, [0, 0]], padding=bytes(not g.padding))),
        CorruptObject,
    ),
    "counts that add up to less": (group(lambda g, p: g.classes[0].__setitem__(0, g.classes[0][0] - 1)), CorruptObject),
    "counts that add up to 2^32 more": (
        group(lambda g, p: put(g, classes=[*g.classes, [2**31, 1], [2**31, 1]], tables=g.tables * 3)),
        CorruptObject,
    ),
    "a parameter of 128": (group(lambda g, p: g.classes[0].__setitem__(1, 128)), CorruptObject),
    "a parameter of 255": (group(lambda g, p: g.classes[0].__setitem__(1, 255)), CorruptObject),
    "a parameter of a class without changed cells": (
        group(lambda g, p: put(g, classes=[*g.classes, [0, 1]], padding=bytes(not g.padding))),
        CorruptObject,
    ),
    "a class without a table": (table(0, bytes(2)), CorruptObject),
    "a class's value symbol past 16 bits": (table(0, levels(0, *[1] * 61)), CorruptObject),
    "gaps of another class": (
        group(lambda g, p: g.classes[0].__setitem__(1, (g.classes[0][1] + 9) % 128)),
        (BaseMismatch, CorruptObject),
    ),
    "gaps as long as can be": (
        group(lambda g, p: put(g, classes=[[count, 127] for count, _ in g.classes])),
        (BaseMismatch, CorruptObject),
    ),
    "a class that no cell has": (
        group(
            lambda g, p: put(
                g,
                first=100,
                classes=[[0, 0], *g.classes],
                padding=bytes(not g.padding),
            )
        ),
        BaseMismatch,
    ),
    "class words taken for gap words": (patch(lambda p: p.entries[0].__setitem__(3, 0), coder="gap"), CorruptObject),
    "a record that says gap": (patch(lambda p: None, coder="gap"), CorruptObject),
}
