"""Evaluation of retrieval on judged questions: of test collections, and of your own documents."""

from voicevault_retrievers.evaluation.ablation import ablation, steps
from voicevault_retrievers.evaluation.files import load_judged, load_qrels, load_questions, save_judged
from voicevault_retrievers.evaluation.judgements import Judged, Judgements, evaluate, judge, place_of
from voicevault_retrievers.evaluation.measures import MEASURES, measured
from voicevault_retrievers.evaluation.metrics import ndcg, recall
from voicevault_retrievers.evaluation.relevance import fit_relevance
from voicevault_retrievers.evaluation.report import ChannelRow, Report, Worse, plot
from voicevault_retrievers.evaluation.significance import Comparison, interval, paired
from voicevault_retrievers.evaluation.synthetic import model_questions, rule_questions
from voicevault_retrievers.evaluation.tuning import Tuned, tune

__all__ = [
    "MEASURES",
    "ChannelRow",
    "Comparison",
    "Judged",
    "Judgements",
    "Report",
    "Tuned",
    "Worse",
    "ablation",
    "evaluate",
    "fit_relevance",
    "interval",
    "judge",
    "load_judged",
    "load_qrels",
    "load_questions",
    "measured",
    "model_questions",
    "ndcg",
    "paired",
    "place_of",
    "plot",
    "recall",
    "rule_questions",
    "save_judged",
    "steps",
    "tune",
]
