# SPDX-License-Identifier: Apache-2.0
"""Keywords as words of a command line: `ckpt_layers=4` is `--ckpt-layers 4`. What a flag may hold is the program's to say."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Mapping, Optional

from ._help import flags
from ._views import View

if TYPE_CHECKING:
    import tempfile


class Words:
    """The command line of one call, and the folder of files that were written for it."""

    def __init__(self, verb: str, positional: tuple[object, ...], keywords: Mapping[str, object]) -> None:
        self.folder: Optional[tempfile.TemporaryDirectory[str]] = None
        self.list = [verb, *(str(word) for word in positional)]
        for keyword, value in keywords.items():
            self._add(verb, keyword, value)

    def path(self, name: str) -> str:
        """Where to put a file of this call; it lives as long as these words."""
        if self.folder is None:
            import tempfile
            self.folder = tempfile.TemporaryDirectory(prefix="shardwright-")
        return os.path.join(self.folder.name, name)

    def written(self, name: str, text: str) -> str:
        """The path of a file of this call with this text."""
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def _add(self, verb: str, keyword: str, value: Any) -> None:
        name = "--" + keyword.rstrip("_").replace("_", "-")
        if value is None:
            return
        if isinstance(value, bool):
            flag = flags(verb).get(keyword)
            if flag is not None and flag.takes:
                self.list += [name, "on" if value else "off"]
            elif value:
                self.list.append(name)
        elif keyword == "model" and not isinstance(value, (str, os.PathLike)):
            self.list += [name, self._model_file(value)]
        elif keyword == "plan" and not isinstance(value, (str, os.PathLike)):
            self.list += [name, self._plan_file(value)]
        elif isinstance(value, Mapping):
            for key, one in value.items():
                self.list += [name, f"{key}={_text(one)}"]
        elif isinstance(value, (list, tuple)):
            if keyword in ("set", "price", "trace"):
                for one in value:
                    self.list += [name, _text(one)]
            else:
                self.list += [name, ",".join(_text(one) for one in value)]
        else:
            self.list += [name, _text(value)]

    def _model_file(self, config: Any) -> str:
        """A configuration of Transformers, or its dictionary, as the config.json that it is."""
        if hasattr(config, "to_dict"):
            config = config.to_dict()
        if not isinstance(config, Mapping):
            raise TypeError(f"model is a {type(config).__name__}, expected a name, a path, a Hugging Face configuration or its dictionary")
        called = str(config.get("_name_or_path") or config.get("name") or config.get("model_type") or "model")
        import json
        return self.written(called.rstrip("/").split("/")[-1] + ".json", json.dumps(config, default=str))

    def _plan_file(self, plan: Any) -> str:
        text = getattr(plan, "plan_file", None)
        if text is None and isinstance(plan, View):
            plan = plan.to_dict()
        if text is None and isinstance(plan, Mapping):
            import json
            text = json.dumps(plan)
        if text is None:
            raise TypeError(f"plan is a {type(plan).__name__}, expected a path, what tune() returned, or the document of a plan file")
        return self.written("plan.json", text)


def _text(value: object) -> str:
    """A number or word as a command line has it; whole floats, such as 2e12, without a point."""
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e18 else repr(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
