"""Which way a metric goes, by its name: `loss` down, `accuracy` up, also as `eval_loss` or `validation/accuracy`."""

from __future__ import annotations

import re

MODES = ("min", "max")
_WORD = re.compile(r"[A-Za-z]+[0-9]*")
LOWER_IS_BETTER = frozenset(
    _WORD.findall("loss perplexity ppl nll crossentropy error err wer cer ter mse mae rmse mape bpb bpc brier ece eer")
)
SHARES = frozenset(_WORD.findall("accuracy acc correct precision recall f1 em"))  # from 0 to 1: chance has a known size
HIGHER_IS_BETTER = SHARES | frozenset(
    _WORD.findall(
        "auc auroc auprc ap map mrr ndcg bleu sacrebleu rouge rouge1 rouge2 rougel chrf meteor bertscore mcc kappa r2 iou "
        "miou dice psnr ssim specificity sensitivity reward"
    )
)
TURNED = frozenset(_WORD.findall("neg negative minus inverse reduction gain improvement delta diff scale"))
_PHRASES = {"exact_match": "em", "bits_per_byte": "bpb", "bits_per_character": "bpc", "cross_entropy": "nll"}


def direction_of(metric: str) -> str | None:
    """Return "min" or "max" as the metric's name says, or None where it says nothing, or two things."""
    words = _words(metric)
    if words & TURNED:
        return None
    lower, higher = bool(words & LOWER_IS_BETTER), bool(words & HIGHER_IS_BETTER)
    if lower == higher:
        return None
    return "min" if lower else "max"


def is_share(metric: str) -> bool:
    """Return whether the metric is a share of rows, from 0 to 1, by its name."""
    return direction_of(metric) == "max" and bool(_words(metric) & SHARES)


def _words(metric: str) -> set[str]:
    spelled = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", metric).lower().replace(" ", "_")
    for phrase, word in _PHRASES.items():
        spelled = spelled.replace(phrase, word)
    return set(_WORD.findall(spelled))
