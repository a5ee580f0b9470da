"""What a training script, or its start, can get wrong."""


class TrainingError(Exception):
    """Bad input to the runtime: what is wrong, because of which value, and what to try instead."""

    def __init__(self, what: str, because: str, try_: str) -> None:
        super().__init__(what, because, try_)
        self.what = what
        self.because = because
        self.try_ = try_

    def parts(self) -> dict[str, str]:
        """Give it as messages carry it."""
        return {"what": self.what, "because": self.because, "try": self.try_}

    def __str__(self) -> str:
        return f"{self.what}\n  because {self.because}\n  try     {self.try_}"
