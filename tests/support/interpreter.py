"""Triton's interpreter, without work that it does again and again, and whose result it throws away.

It interprets each kernel as Triton does it, on the same values. Two things took half its time: at each sum and product
of integers it computes a second time in 64 bits whether they overflow, for an assertion that it makes only where it is
debugged; and at each call of one kernel's function by another it goes through the whole language to put its own
functions in place, where the launch of the kernel has put them.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from triton.language import core  # type: ignore[import-untyped]
from triton.runtime import interpreter  # type: ignore[import-untyped]


def quicken() -> None:
    """Leave out what nobody looks at, where this release of Triton does it. For good in this process."""
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    if hasattr(interpreter, "_LangPatchScope") and not isinstance(interpreter._patch_lang, _Patch):
        interpreter._patch_lang = _Patch(interpreter._patch_lang)


class _Patch:
    """What puts the interpreter's functions into the language, and does nothing where they are in place."""

    def __init__(self, patch: Any) -> None:
        self._patch = patch
        self._languages: dict[Any, list[Any]] = {}

    def __call__(self, function: Any) -> Any:
        languages = self._languages.get(function)
        if languages is None:
            names = function.__globals__.values()
            languages = [each for each in names if inspect.ismodule(each) and each in (interpreter.tl, core)]
            self._languages[function] = languages
        if any(core.is_builtin(language.load) for language in languages) or core.is_builtin(core.tensor.__add__):
            return self._patch(function)
        return interpreter._LangPatchScope()  # nothing was changed, so nothing is to be restored
