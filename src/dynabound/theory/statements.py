"""What the paper states, with the lines of its LaTeX source (arXiv 1902.09843), so that every verdict can name them."""

from __future__ import annotations

from typing import NamedTuple


class Statement(NamedTuple):
    """Something that the paper states."""

    name: str
    line: int
    kind: str = "sentence"
    """"theorem" for what the paper numbers (theorems, the corollary, lemmas), "sentence" for all else."""


THEOREM_1 = Statement("Theorem 1", 231, "theorem")
THEOREM_2 = Statement("Theorem 2", 245, "theorem")
THEOREM_3 = Statement("Theorem 3", 250, "theorem")
THEOREM_4 = Statement("Theorem 4", 304, "theorem")
COROLLARY = Statement("Corollary 4.1", 311, "theorem")
THEOREM_5 = Statement("Theorem 5", 1052, "theorem")
LEMMA_1 = Statement("Lemma 1", 670, "theorem")
LEMMA_2 = Statement("Lemma 2", 701, "theorem")
LEMMA_3 = Statement("Lemma 3", 961, "theorem")

CONSTANT_STEP = Statement("Theorem 1 with a constant step", 234)
RMSPROP = Statement("Theorem 1 for RMSprop", 159)
AMSGRAD = Statement("Theorem 1 for AMSGrad", 159)
DEBIASED = Statement("Theorem 1 for debiased Adam", 151)
CONVEX = Statement("Theorem 1's problem is convex", 231)
SGD_SOLVES_IT = Statement("SGD solves Theorem 1's problem", 235)
DECREASING_BETA1 = Statement("Theorem 2 for decreasing β₁", 254)

ON_RANDOM_PROBLEMS = {
    "AdaBound": Statement("Theorem 4 on random problems", 304),
    "AMSBound": Statement("Theorem 5 on random problems", 1052),
}
COROLLARY_ON_RANDOM_PROBLEMS = Statement("Corollary 4.1 on random problems", 311)
INVERSE_RATES_GROW = Statement("Proof of Theorem 4: 1/η_t never decreases", 1008)
SQRT_T = Statement("Theorem 4's bound is O(√T)", 316)
SQRT_T_FOR_ANY_BETA1 = Statement("Theorem 4's bound is O(√T) for every β₁ₜ", 1019)
SQRT_T_HARMONIC = Statement("Theorem 4's bound is O(√T) for β₁/t", 317)
PROOF_OF_LEMMA_1 = Statement("Proof of Lemma 1: first inequalities", 676)
JENSEN = Statement("Proof of Lemma 3: Jensen's inequality", 976)
LEMMA_2_IN_LEMMA_3 = Statement("Proof of Lemma 3: Lemma 2 for β₁ₜ", 984)
