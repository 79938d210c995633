"""The verdict on a claim, of the paper or of ours: one class and four words, for theorems and experiments alike."""

from __future__ import annotations

from dataclasses import dataclass

SUPPORTED, REFUTED, UNDECIDED, NOT_TESTABLE = "supported", "refuted", "undecided", "not testable here"


@dataclass(frozen=True)
class Verdict:
    """A claim, what was measured, and what follows."""

    claim: str
    measured: str
    verdict: str
    """One of the four words above."""
    source: str = "ours"
    """Who makes the claim: "paper l. N" (the line in the paper's LaTeX source), "Savarese 2019" or "ours"."""
    settings: str = ""
    """Where these differ from those of the study."""
    statement: str = ""
    """The paper's statement that the claim tests, such as "Theorem 1"; empty if it tests none."""
    kind: str = ""
    """"theorem" if the paper numbers the statement, "sentence" if it does not."""
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    """The interval of the difference, over seeds."""
    test_error: float | None = None
    """The standard error of the difference from the finite test set, if the methods erred on independent examples."""
    bounds: tuple[float | None, float | None] | None = None
    """The range of differences for which the claim is true; None: no limit."""
    unit: str = ""
    p: float | None = None
    """After Holm's correction; None if no chance is involved, or if nothing was tested."""

    @property
    def of_paper(self) -> bool:
        """Whether the paper makes the claim."""
        return self.source.startswith("paper")
