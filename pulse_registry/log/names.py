"""Names of runs and of tags: the rules, once, and how a name as it is given becomes the one that is stored.

Names are given in any case (``Qwen2.5-Math-7B``) and stored in lower case: two that differ in case alone are one.
"""

from __future__ import annotations

import re
import string
from typing import Final

from pulse_registry.errors import InvalidArgument
from pulse_schemas.base import RUN_NAME_PATTERN, TAG_NAME_PATTERN

RUN_NAME: Final = re.compile(RUN_NAME_PATTERN, re.ASCII)
"""A run's name as it is stored."""
GIVEN_RUN_NAME: Final = re.compile(RUN_NAME_PATTERN.replace("a-z", "A-Za-z"), re.ASCII)
"""A run's name as it may be given."""
LATEST: Final = "latest"
_TAG_NAME: Final = re.compile(TAG_NAME_PATTERN, re.ASCII)
_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_SHOWN: Final = 200


def fold(name: str) -> str:
    """Return a name with A to Z in lower case. Letters of other scripts stay: `str.lower` makes ASCII of some."""
    return name.translate(_LOWER)


def run_name(given: str) -> str:
    """Return the name under which a run is stored.

    Raises:
        InvalidArgument: it is no run name.
    """
    name = fold(given)
    if RUN_NAME.fullmatch(name) is None:
        raise InvalidArgument(
            f"{given[:_SHOWN]!r} is no run name: 1 to 128 letters (a to z, in any case), digits, '.', '_' and '-', "
            "the first a letter or digit"
        )
    return name


def tag_name(given: str) -> str:
    """Return the name under which a tag is stored.

    Raises:
        InvalidArgument: it is no name that a version can be given.
    """
    name = version_name(given)
    if name == LATEST:
        raise InvalidArgument(f"{LATEST!r} is the newest version at any time, and no tag: take another name")
    return name


def version_name(given: str) -> str:
    """Return a tag's name, or ``latest``, as it is stored.

    Raises:
        InvalidArgument: it is neither.
    """
    name = fold(given)
    if _TAG_NAME.fullmatch(name) is None:
        raise InvalidArgument(
            f"{given[:_SHOWN]!r} is no name of a tag: a letter first (a to z, in any case), then those, digits, '.', "
            "'_' and '-', at most 64"
        )
    return name
