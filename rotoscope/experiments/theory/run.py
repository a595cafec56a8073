"""The statements, in the order in which the papers make them."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.page_data import PageRun, Tab, verdict_tab
from rotoscope.experiments.theory import p1 as heads
from rotoscope.experiments.theory import p2 as steps
from rotoscope.experiments.theory.statement import Statement
from rotoscope.progress import progress_bar
from rotoscope.runs.result import SavedRun, Table, Tables
from rotoscope.runs.run import Run
from rotoscope.settings import nearest

if TYPE_CHECKING:
    from rotoscope.terminal import Screen


HOLDS = "holds"
LISTED = 8
"""Statements on the screen; those that do not hold as printed come first."""


class TheoryRun(SavedRun):
    """A table of statements with verdict, what was checked and the number that decides."""

    kind = "theory"

    statements = Table(
        "One row per statement: verdict, what was checked, the number that decides, correction, counterexample."
    )

    def screen(self) -> Screen:
        """What a terminal shows: one statement in full, of several the verdicts."""
        from rotoscope.terminal import Grid, Screen

        rows = self.statements
        counts = ", ".join(f"{number} {verdict}" for verdict, number in rows["verdict"].value_counts().items())
        details = [("Statements", lambda: rows[["name", "verdict", "source", "claim", "checked", "figure"]])]
        if len(rows) == 1:
            return Screen(found=statement_lines(rows.iloc[0].to_dict()), details=details)
        first = rows.sort_values("verdict", key=lambda verdicts: verdicts == HOLDS, kind="stable")
        grid = Grid.of(first[["name", "verdict", "source"]], LISTED)
        return Screen(found=[f"{len(rows)} statements: {counts}", grid], details=details)

    def __repr__(self) -> str:
        counts = self.statements["verdict"].value_counts()
        return f"TheoryRun({', '.join(f'{number} {verdict}' for verdict, number in counts.items())})"


def statement_lines(row: dict[str, Any]) -> list[str]:
    """One statement: the claim, what is against it, what was checked and what was found."""
    lines = [("claim", row["claim"])]
    if row["verdict"] != HOLDS:
        state = "checked, holds" if row["correction_holds"] else "checked, FAILS"
        lines += [("against it", row["counterexample"]), (f"instead ({state})", row["correction"])]
    lines += [("checked", row["checked"]), ("found", row["figure"])]
    head = f"{row['name']}: {row['verdict']} ({row['source']}, {row['seconds']:.1f} s)"
    return [head, *(f"  {title}: {text}" for title, text in lines)]


def theory_tab(page_run: PageRun) -> Tab | None:
    """The statements with their verdicts."""
    return verdict_tab(page_run, "statements", "Statements", ("name", "verdict", "source", "claim", "figure"))


STATEMENTS: dict[str, Statement] = {
    statement.name: statement
    for statement in (
        Statement("nope-symbolic", "P1, definitions", "every NoPE head acts symbolically; a head whose keys are equal acts positionally", heads.check_nope_is_symbolic),
        Statement("exclusion", "P1 Theorem 1", "the variance of the logits is at most D_pos + D_sym, and the constant is optimal", heads.check_exclusion),
        Statement("index-not-symbolic", "P1 Theorem 2", "no symbolic head solves Index", heads.check_index_needs_position),
        Statement("h-pos", "P1 Theorem 3", "H_POS solves Index with one non-zero angle", heads.check_h_pos),
        Statement("retrieval-not-positional", "P1 Theorem 4", "no positional head with identity values, a projection as output map and one-hot embeddings solves Retrieval", heads.check_retrieval_needs_symbols),
        Statement("h-sym", "P1 Theorem 5", "H_SYM solves Retrieval without rotation", heads.check_h_sym),
        Statement("induction-not-pure", "P1 Corollary 1", "no pure head solves partial induction", heads.check_induction_needs_both),
        Statement("h-mix", "P1 Theorem 6", "H_MIX solves partial induction with angles (0, theta_2), N theta_2 <= pi", heads.check_h_mix),
        Statement("one-angle", "P1, on partial induction", "one angle cannot do partial induction", heads.check_one_angle,
                  "no pure head can; one angle solves it exactly with a gap of about omega^2 / 16N: hard to learn, not impossible", mended=True),
        Statement("w-max-positional", "P1 Theorem 7", "w_max of H_POS is U-shaped over positions while N theta < 2 pi", heads.check_w_max_positional),
        Statement("w-max-symbolic", "P1 Theorem 7", "w_max of simplified H_SYM is an inverse U", heads.check_w_max_symbolic),
        Statement("t-index", "P2 Theorem 3.1", "T_Index computes Index for every beta above log(n0 - 1) / gap", steps.check_t_index),
        Statement("t-index-angle", "P2 Theorem 3.1", "T_Index works for every irrational theta", steps.check_irrational_angle,
                  "for every theta with t theta not a multiple of 2 pi for 1 <= t < n0", mended=True),
        Statement("t-retrieval", "P2 Theorem 3.1", "T_Retrieval computes Retrieval on proper inputs for 0 < theta < omega / (2 n0)", steps.check_t_retrieval),
        Statement("remark-3-1", "P2 Remark 3.1", "no purely symbolic head does Index, and no purely positional one Retrieval", heads.check_remark,
                  "the second under the assumptions of P1's Theorem 4; a general output map can decide Retrieval from uniform attention", mended=True),
        Statement("t-retrieval-zero", "P2 Remark 3.2", "at theta = 0 Retrieval's gap does not depend on the length", steps.check_retrieval_at_zero,
                  "on tokens that look for another letter; pairs with a digit that share their letter tie, so T_Retrieval itself needs theta > 0", mended=True),
        Statement("number-composition", "P2 section 3", "h layers of T_Index and then the identity solve the number task of h hops", partial(steps.check_compositions, "number")),
        Statement("letter-composition", "P2 section 3", "h layers of T_Retrieval and then the identity solve the letter task of h hops", partial(steps.check_compositions, "letter")),
        Statement("index-definition", "P2, definition of Index", "Index is defined for every integer token", steps.check_index_before_the_start,
                  "an integer must not point before the sequence; such inputs are refused", mended=True),
        Statement("appendix-b", "P2 Appendix B", "the answer of the number task is s_(n2 - j + 1)", steps.check_appendix_b,
                  "it is s_(n1 + k - j_k), k the index of the last pointer in the integer window"),
        Statement("index-discrepancy-max", "P2 Theorem 3.2", "the largest discrepancy of Index over inputs is at most min{1 - cos theta, 2 pi^2 / n^2}", steps.check_index_largest,
                  "it is exactly 1 - max_{t <= ceil((n-1)/2)} cos(t theta), at most min{1 - cos theta, 8 pi^2 / (n+1)^2}"),
        Statement("index-discrepancy-worst", "ours, P2 Theorem 3.2 read as a minimum", "Index's discrepancy on its worst input is at most 1 - cos(2 pi / n) <= 2 pi^2 / n^2", steps.check_index_worst),
        Statement("retrieval-discrepancy-max", "P2 Theorem 3.2", "the largest discrepancy of Retrieval over inputs is at most 1 - cos(omega - n theta)", steps.check_retrieval_largest,
                  "it comes up to 2 by Definition 3.1; the appendix's own formula, a match against a neighbouring letter, gives 1 - cos(omega - (n-1) theta)"),
        Statement("lemma-f-1", "P2 Lemma F.1, known to us by its use", "for every angle and every n, some t from 1 to n - 1 has 1 - cos(t theta) <= 2 pi^2 / n^2", steps.check_lemma),
        Statement("retrieval-discrepancy-worst", "ours, P2 Theorem 3.2 read as a minimum", "Retrieval's discrepancy on its worst input is 1 - cos(omega - n theta)", steps.check_retrieval_worst,
                  "it is cos((n-2) theta) - cos(omega - (n-1) theta) for n >= 3", mended=True),
        Statement("separation", "P2 section 3", "Index decays like 1/n^2, Retrieval does not decay at theta = 0", steps.check_separation),
        Statement("frequency-id", "P2 Fig. 5A, a rounded caption", "frequency id 2 turns by 0.8 per position", steps.check_frequency_id, "by 0.866, cut off after one place", mended=True),
    )
}  # fmt: skip


# Running statements, one or all.


def run_theory(
    name: str | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> TheoryRun:
    """Put the papers' statements to the test: all of them, or the one that is named."""
    if name is not None and name not in STATEMENTS:
        raise RotoscopeError(
            f"no statement called '{name}': {nearest(name, STATEMENTS)}there are {', '.join(STATEMENTS)}"
        )
    chosen = [STATEMENTS[name]] if name is not None else list(STATEMENTS.values())
    settings = {"statements": [statement.name for statement in chosen]}
    run = Run(TheoryRun, settings, out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    with progress_bar("checking", len(chosen), show_progress) as bar:
        for statement in chosen:
            run.piece(statement.name, partial(_checked, statement))
            bar.advance()
    return run.finish()


def _checked(statement: Statement) -> Tables:
    began = time.perf_counter()
    evidence = statement.check()
    row = {
        "name": statement.name,
        "source": statement.source,
        "claim": statement.claim,
        "verdict": statement.verdict(evidence),
        "checked": evidence.checked,
        "figure": evidence.figure,
        "correction": statement.correction or "",
        "correction_holds": evidence.corrected,
        "counterexample": evidence.counterexample or "",
        "seconds": time.perf_counter() - began,
    }
    return {"statements": pd.DataFrame([row])}
