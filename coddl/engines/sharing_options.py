"""Options that set how a pool's server shares GPUs."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingOptions:
    """Values of `--policy` and related options; empty: as before."""

    policy: str = ""
    placement: str = ""
    plugins: tuple[str, ...] = ()  # whole paths of files with the operator's policies
    cluster: str = ""  # how nodes are wired: a short form, or the whole path of a file
    cool_down_s: float | None = None

    @property
    def words(self) -> list[str]:
        """Return the values as command-line options."""
        words = ["--policy", self.policy] if self.policy else []
        words += ["--placement", self.placement] if self.placement else []
        return words + self.words_again

    @property
    def words_again(self) -> list[str]:
        """Return those for a server that has its own policy by now."""
        words = [word for path in self.plugins for word in ("--plugin", path)]
        words += ["--cluster", self.cluster] if self.cluster else []
        if self.cool_down_s is not None:
            words += ["--cool-down", f"{self.cool_down_s:g}"]
        return words


AS_BEFORE: Final = SharingOptions()
