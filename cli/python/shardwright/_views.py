# SPDX-License-Identifier: Apache-2.0
"""JSON objects with attributes: thin views, nothing is copied or renamed."""
from __future__ import annotations

from typing import Any, ClassVar, Iterator, Mapping


class View:
    """A JSON object of the program: `view.key` is `view["key"]`, and objects inside are views, too."""

    #: Views of the objects under these keys, and of those in lists there.
    _views: ClassVar[Mapping[str, "type[View]"]] = {}

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        data = self.__dict__.get("_data", {})
        if name.startswith("__") or name not in data:
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(data)}")
        return self._wrapped(name, data[name])

    def __getitem__(self, key: str) -> Any:
        return self._wrapped(key, self._data[key])

    def _wrapped(self, key: str, value: Any) -> Any:
        view = self._views.get(key, View)
        if isinstance(value, dict):
            return view(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return [view(one) for one in value]
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._data]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        return {"_data": self._data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def keys(self) -> list[str]:
        return list(self._data)

    def get(self, key: str, otherwise: Any = None) -> Any:
        return self[key] if key in self._data else otherwise

    def to_dict(self) -> dict[str, Any]:
        """The JSON object itself, as json.loads reads it."""
        return self._data

    def __repr__(self) -> str:
        import json
        return f"{type(self).__name__}({json.dumps(self._data, indent=1)})"
