"""Plain values that a script keeps with the job: `state = coddl.state(best=0.0, patience=0)`."""

from typing import Any

from coddl.runtime.worker.image import flatten


class Values:
    """Values by name, as attributes; every worker has the main worker's at each epoch's start."""

    _kept: dict[str, Any]
    _early: dict[str, Any]

    def __init__(self) -> None:
        object.__setattr__(self, "_kept", {})
        object.__setattr__(self, "_early", {})  # came before the script named them

    def __getattr__(self, name: str) -> Any:
        try:
            return self._kept[name]
        except KeyError:
            known = ", ".join(sorted(self._kept)) or "none"
            raise AttributeError(f"coddl.state has no {name!r}; it has {known}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        flatten({name: value})  # what can't be kept is better refused now
        self._kept[name] = value

    def __repr__(self) -> str:
        return f"state({', '.join(f'{name}={value!r}' for name, value in self._kept.items())})"

    def name(self, values: dict[str, Any]) -> None:
        """Keep further values; what the job already has of them counts."""
        for name, value in values.items():
            setattr(self, name, self._early.pop(name, value))

    def held(self) -> dict[str, Any]:
        """Return all there are."""
        return {**self._early, **self._kept}

    def take(self, values: dict[str, Any]) -> None:
        """Have another worker's."""
        for name, value in values.items():
            (self._kept if name in self._kept else self._early)[name] = value
