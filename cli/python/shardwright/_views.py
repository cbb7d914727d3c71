# SPDX-License-Identifier: Apache-2.0
"""JSON objects with attributes: thin views, nothing is copied or renamed."""
from __future__ import annotations

from typing import Any, ClassVar, Iterable, Iterator, Mapping, Union


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """One level: {"memory": {"fits": True}} is {"memory.fits": True}. Lists stay as they are."""
    row: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            row.update(flat(value, f"{prefix}{key}."))
        else:
            row[prefix + key] = value
    return row


def to_frame(views: Union["View", Iterable["View"]]) -> Any:
    """A pandas DataFrame: a row for each prediction, plan, option or run of an answer, or of several; columns are the keys of
    the JSON, joined by dots ("memory.total_bytes"). Needs pandas."""
    import pandas
    several = [views] if isinstance(views, View) else views
    return pandas.DataFrame([row for view in several for row in view.to_rows()])


class View:
    """A JSON object of the program: `view.key` is `view["key"]`, and objects inside are views, too."""

    #: Views of the objects under these keys, and of those in lists there.
    _views: ClassVar[Mapping[str, "type[View]"]] = {}
    #: The key of the list that a table of it has a row for each of; empty: it is a row itself.
    _rows: ClassVar[str] = ""

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

    def to_rows(self) -> list[dict[str, Any]]:
        """Flat dictionaries, one for each row of a table."""
        return [flat(one) for one in self._data[self._rows]] if self._rows else [flat(self._data)]

    def to_frame(self) -> Any:
        """The same as a pandas DataFrame."""
        return to_frame(self)

    def __repr__(self) -> str:
        import json
        return f"{type(self).__name__}({json.dumps(self._data, indent=1)})"
