"""A collection of reports that are much alike, written by a program: pages of filings, and questions about figures.

Every company files a report each year, of pages that all companies have, in phrases that they share. A question names
a company, a year and a figure, in other words than the page that answers it; pages that discuss such figures in general
have the question's words more often than that page has. It is a collection for development, of a kind that public
collections lack; what is measured on it says how rankings compare, and not how well real filings are searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from voicevault_retrievers import Chunk
from voicevault_retrievers.evaluation import Judged

SEED = 20_261_125
YEARS = range(2015, 2022)
COMPANIES = 75
ASKED = 150

_FIRST = (
    "Aldgate", "Brennick", "Calder", "Dunmore", "Elvaston", "Farrow", "Garrick", "Hollin", "Ibsen", "Jarrow", "Kestrel",
    "Lorimer", "Marden", "Norvale", "Orrin", "Penrith", "Quarles", "Ravenna", "Selkirk", "Tarrant", "Ulverton",
    "Varley",
    "Wexcombe", "Yarrow", "Zennor",
)  # fmt: skip
_SECOND = (
    ("Foods", "packaged foods", "grocery chains"), ("Pharma", "medicines", "hospitals and wholesalers"),
    ("Energy", "natural gas and power", "utilities"), ("Software", "subscription software", "enterprises"),
    ("Logistics", "freight and warehousing", "manufacturers and retailers"), ("Motors", "commercial vehicles",
    "dealers"),
    ("Retail", "clothing and home goods", "consumers"), ("Chemicals", "specialty coatings", "industrial buyers"),
    ("Semiconductor", "power chips", "makers of electronics"),
)  # fmt: skip

_COVER = (
    "ANNUAL REPORT pursuant to section 13 of the Act for the fiscal year ended December 31, {year}. {name} "
    "(exact name of registrant as specified in its charter). Indicate by check mark whether the registrant is a large "
    "accelerated filer. The aggregate market value of the common stock held by non-affiliates was {a} million.",
    "Documents incorporated by reference: portions of the proxy statement for the {next} annual meeting "
    "of shareholders.",
)
_LETTER = (
    "To our shareholders: {year} was a year of steady execution at {name}. Our teams served {buyers} with discipline, "
    "and I thank each of our {staff} colleagues.",
    "We returned cash to you, invested for growth, and kept our balance sheet strong. Revenue, net income and capital "
    "expenditure are discussed in the pages that follow. We look to {next} with confidence.",
)
_BUSINESS = (
    "{name} makes and sells {goods} to {buyers}. We compete on quality, price and service. At year-end we had "
    "approximately {staff} employees, of whom {pct} percent were covered by collective agreements.",
    "Our operations are seasonal. We hold patents and trademarks that are material to the business. Raw materials are "
    "bought from several suppliers.",
)
_RISKS = (
    "Our revenue, net income, cash flow and capital expenditure may vary from year to year. A decline in "
    "the demand for "
    "{goods} could reduce revenue and net income. Our total debt could limit how we spend on capital expenditure. "
    "Employees may leave; research and development may not lead to products; the tax rate may rise; dividends may be "
    "cut or suspended.",
    "We cannot assure you that revenue, total debt, interest expense, dividends per share or research and development "
    "expense in any fiscal year will be as expected. Forward-looking statements speak only as of the "
    "date of this report.",
)
_RISKS_MORE = (
    "The company may be subject to litigation. Changes of the effective tax rate could harm net income. Goodwill could "
    "become impaired. An increase of inventory, of capital expenditure or of total debt could harm cash flow.",
    "Cyber attacks, pandemics, the weather and changes in law may disrupt operations and harm employees, revenue and "
    "dividends. Actual results for the fiscal year may differ.",
)
_RESULTS = (
    "Results of operations, fiscal {year} compared with {last}. Net sales {moved} {pct} percent to "
    "{sales} million from "
    "{sales_last} million, on volume and price. Cost of goods sold was {a} million.",
    "Selling, general and administrative costs were {b} million. We spent {rd} million on laboratories, trials and "
    "engineering of new products. The provision for income taxes was {rate} percent of earnings before tax.",
)
_LIQUIDITY = (
    "Liquidity. Operations generated {ocf} million in {year} and {ocf_last} million in {last}. We had "
    "{cash} million of "
    "cash and equivalents at year-end and an undrawn revolving facility of {a} million.",
    "The board declared quarterly payments totalling {dps} a share to holders of common stock. We bought back shares "
    "for {b} million.",
)
_INCOME = (
    "CONSOLIDATED STATEMENTS OF OPERATIONS (in millions, except per share). Years ended December 31, {year}, {last}, "
    "{before}. Net sales {sales} {sales_last} {a}. Cost of sales {b} {c} {d}. Gross profit {e} {f} {g}.",
    "Interest on borrowings {interest} {h} {i}. Earnings before tax {j} {k} {l}. Earnings attributable to the company "
    "{profit} {profit_last} {m}. Diluted {eps} {n} {o}.",
)
_BALANCE = (
    "CONSOLIDATED BALANCE SHEETS (in millions). December 31, {year}, {last}. Cash and equivalents {cash} {a}. Accounts "
    "receivable {b} {c}. Stocks of raw materials and finished goods {stock} {d}. Goodwill {e} {f}.",
    "Notes payable and current portion of borrowings {g} {h}. Long-term borrowings {debt} {i}. Retained earnings {j} "
    "{k}. Total liabilities and equity {l} {m}.",
)
_CASH = (
    "CONSOLIDATED STATEMENTS OF CASH FLOWS (in millions). Years ended December 31, {year}, {last}, {before}. Net cash "
    "from operating activities {ocf} {ocf_last} {a}. Depreciation and amortization {b} {c} {d}.",
    "Purchases of property, plant and equipment ({capex}) ({capex_last}) ({e}). Acquisitions, net of cash acquired "
    "({f}) ({g}) ({h}). Repurchases of common stock ({i}) ({j}) ({k}). Payments to shareholders ({l}) ({m}) ({n}).",
)
_SEGMENTS = (
    "Note {note}. Segments. {name} has two segments, {goods} and services. Segment sales were {a} and {b} million in "
    "{year}. Sales outside the home market were {pct} percent of the whole.",
    "No customer was more than a tenth of sales. Segment assets were {c} and {d} million.",
)

_PAGES: tuple[tuple[str, tuple[str, str]], ...] = (
    ("cover", _COVER), ("letter", _LETTER), ("business", _BUSINESS), ("risks", _RISKS), ("risks-more", _RISKS_MORE),
    ("results", _RESULTS), ("liquidity", _LIQUIDITY), ("income", _INCOME), ("balance", _BALANCE), ("cash", _CASH),
    ("segments", _SEGMENTS),
)  # fmt: skip
_NAMED = {"cover", "letter", "business", "segments"}
"""Pages whose text names the company; of the others some have it in a header, as in filings."""

_QUESTIONS: tuple[tuple[str, str], ...] = (
    ("What was the capital expenditure of {name} in fiscal year {year}?", "cash"),
    ("How much did {name} spend on new plants and machines in {year}?", "cash"),
    ("What revenue did {name} report for {year}?", "income"),
    ("What was {name}'s net income in fiscal {year}?", "income"),
    ("What was the interest expense of {name} in {year}?", "income"),
    ("How large was the inventory of {name} at the end of {year}?", "balance"),
    ("What was {name}'s long-term debt at the end of fiscal year {year}?", "balance"),
    ("How many employees did {name} have in {year}?", "business"),
    ("What did {name} spend on research and development in {year}?", "results"),
    ("By how much did the revenue of {name} change in {year} against the year before?", "results"),
    ("What was the effective tax rate of {name} in fiscal {year}?", "results"),
    ("What dividends per share did {name} declare in {year}?", "liquidity"),
    ("How much cash flow from operations did {name} have in {year}?", "liquidity"),
    ("Which share of the revenue of {name} came from abroad in {year}?", "segments"),
    ("What was the market capitalisation of {name} for the {year} report?", "cover"),
)


def collection() -> tuple[list[Chunk], list[Judged]]:
    """The pages and the questions; the same each time."""
    companies = _companies(Random(SEED))
    chunks = [chunk for company in companies for year in YEARS for chunk in _report(*company, year)]
    rng = Random(SEED + 1)
    asked: dict[str, Judged] = {}
    while len(asked) < ASKED:
        name, year = rng.choice(companies)[0], rng.choice(YEARS)
        text, page = _QUESTIONS[len(asked) % len(_QUESTIONS)]
        question = text.format(name=name, year=year)
        asked[question] = Judged(f"{len(asked):03}", question, {_id(name, year, page): 1})
    return chunks, list(asked.values())


def _companies(rng: Random) -> list[tuple[str, str, str]]:
    every = [(f"{first} {second[0]}", *second[1:]) for first in _FIRST for second in _SECOND]
    return rng.sample(every, COMPANIES)


def _id(name: str, year: int, page: str) -> str:
    return f"{name.lower().replace(' ', '-')}-{year}-{page}"


def _report(name: str, goods: str, buyers: str, year: int) -> Iterator[Chunk]:
    rng = Random(f"{SEED} {name} {year}")
    figures = {key: f"{rng.randint(20, 9800):,}" for key in "abcdefghijklmno"}
    figures |= {
        key: f"{rng.randint(20, 9800):,}"
        for key in ("sales", "sales_last", "ocf", "ocf_last", "cash", "stock", "debt", "capex", "capex_last",
        "interest",
                    "profit", "profit_last", "rd")
    }  # fmt: skip
    said = {
        "name": name, "goods": goods, "buyers": buyers, "year": year, "next": year + 1, "last": year - 1,
        "before": year - 2, "staff": f"{rng.randint(8, 900) * 100:,}", "pct": rng.randint(2, 48),
        "rate": f"{rng.uniform(12, 31):.1f}", "dps": f"{rng.uniform(.2, 4):.2f}", "eps": f"{rng.uniform(.4, 9):.2f}",
        "note": rng.randint(3, 19), "moved": rng.choice(("rose", "fell")), **figures,
    }  # fmt: skip
    for number, (page, sentences) in enumerate(_PAGES, 1):
        text = " ".join(sentence.format(**said) for sentence in sentences)
        header = f"{name} {year} annual report, page {number * 7}. " if rng.random() < 0.5 else ""
        yield Chunk(_id(name, year, page), text if page in _NAMED else header + text)
