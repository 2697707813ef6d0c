"""Languages of documents: which is found, and that only the document's own text counts."""

from __future__ import annotations

import pytest

from tests.helpers import older
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.text.languages import CANDIDATES, LANGUAGES, TAGS, installed, stems
from voicevault_retrievers.text.probes import PROBES
from voicevault_retrievers.text.stopwords import STOPWORDS

SENTENCES = {
    "ar": "يجب فحص المضخة من قبل الفني كل ستة أشهر، ولكن هذا ليس ضروريا في الشتاء.",
    "ca": "La bomba s'ha de revisar cada sis mesos, però això no és necessari quan fa molt de fred.",
    "cs": "Čerpadlo se musí kontrolovat každých šest měsíců, ale v zimě to není nutné.",
    "da": "Pumpen skal kontrolleres hver sjette måned, men det er ikke nødvendigt om vinteren.",
    "de": "Die Pumpe muss alle sechs Monate geprüft werden, aber im Winter ist das nicht nötig.",
    "el": "Η αντλία πρέπει να ελέγχεται κάθε έξι μήνες, αλλά τον χειμώνα δεν είναι απαραίτητο.",
    "en": "The pump has to be inspected every six months, but this is not needed in winter.",
    "es": "La bomba se debe revisar cada seis meses, pero esto no es necesario durante el invierno.",
    "et": "Pumpa tuleb kontrollida iga kuue kuu järel, aga talvel ei ole see vajalik.",
    "eu": "Ponpa sei hilean behin egiaztatu behar da, baina neguan hori ez da beharrezkoa izaten.",
    "fa": "پمپ باید هر شش ماه یک بار بازرسی شود، اما این کار در زمستان لازم نیست.",
    "fi": "Pumppu on tarkastettava kuuden kuukauden välein, mutta se ei ole tarpeen talvella.",
    "fr": "La pompe doit être contrôlée tous les six mois, mais ce n'est pas nécessaire en hiver.",
    "ga": "Ní mór an caidéal a sheiceáil gach sé mhí, ach níl sé sin riachtanach sa gheimhreadh.",
    "hi": "पंप की जाँच हर छह महीने में की जानी चाहिए, लेकिन सर्दियों में यह ज़रूरी नहीं है।",
    "hu": "A szivattyút hathavonta kell ellenőrizni, de télen ez nem szükséges, mert nem működik.",
    "hy": "Պոմպը պետք է ստուգել վեց ամիսը մեկ, բայց ձմռանը դա անհրաժեշտ չէ։",
    "id": "Pompa itu harus diperiksa setiap enam bulan, tetapi hal ini tidak perlu pada musim dingin.",
    "it": "La pompa deve essere controllata ogni sei mesi, ma questo non è necessario d'inverno.",
    "lt": "Siurblį reikia tikrinti kas šešis mėnesius, bet žiemą tai nėra būtina.",
    "ne": "पम्प हरेक छ महिनामा जाँच गर्नुपर्छ, तर जाडोमा यो आवश्यक छैन भने पनि राम्रो हो।",
    "nl": "De pomp moet om de zes maanden worden gecontroleerd, maar in de winter is dat niet nodig.",
    "no": "Pumpen må kontrolleres hvert halvår, men det er ikke nødvendig når den ikke brukes av noen.",
    "pl": "Pompę należy sprawdzać co sześć miesięcy, ale zimą nie jest to konieczne.",
    "pt": "A bomba deve ser verificada a cada seis meses, mas isso não é necessário no inverno.",
    "ro": "Pompa trebuie verificată la fiecare șase luni, dar acest lucru nu este necesar iarna.",
    "ru": "Насос нужно проверять каждые шесть месяцев, но зимой это не требуется.",
    "sr": "Пумпу треба проверити сваких шест месеци, али то није потребно када је зима.",
    "sv": "Pumpen måste kontrolleras var sjätte månad, men det är inte nödvändigt på vintern.",
    "ta": "பம்பை ஆறு மாதங்களுக்கு ஒரு முறை சரிபார்க்க வேண்டும், ஆனால் குளிர்காலத்தில் இது தேவையில்லை.",
    "tr": "Pompa her altı ayda bir kontrol edilmelidir, ama kışın bu gerekli değildir.",
}


def tagged(text: str) -> set[str]:
    """The languages that a document's terms are tagged with."""
    names = {tag: language for language, tag in TAGS.items()}
    return {names[term[0]] for term in Analyzer()(text) if term[0] in names}


@pytest.mark.parametrize("language", sorted(installed() & TAGS.keys()))
def test_a_sentence_is_known(language: str) -> None:
    assert tagged(SENTENCES[language]) == {language}


@pytest.mark.parametrize(
    ("text", "languages"),
    [
        ("Pump maintenance", {"en"}),
        ("import os\nfor i in range(n): a, e = o[i], y", {"en"}),
        ("quarterly-la-report_2024-el-final.pdf", {"en"}),
        ("насос", {"ru"}),
        ("pumpa je stara, ali nije u kvaru jer je bila kod nas", {"sr"}),
        ("The pump of the station. Насос на станции не работает.", {"en", "ru"}),
        ("水泵 42 שלום", set()),
    ],
)
def test_each_script_has_its_language(text: str, languages: set[str]) -> None:
    assert tagged(text) == languages


def test_every_language_has_what_it_needs() -> None:
    assert {code for codes in CANDIDATES.values() for code in codes} == set(TAGS) == set(SENTENCES)
    assert set(LANGUAGES) == set(STOPWORDS) == set(PROBES)
    assert older("PyStemmer", "3.1") or installed() >= LANGUAGES.keys()
    assert sorted(TAGS.values()) == [chr(number) for number in range(1, 32)]
    for language in installed():
        assert stems(language, PROBES[language]) != PROBES[language]


def test_stopwords_of_one_language_do_not_look_rare_in_another() -> None:
    tags = TAGS["en"] + TAGS["de"]
    asked = {text: [term.word for term in Analyzer().query(text, tags)] for text in ("the war", "wie war das Wetter")}
    assert asked == {"the war": ["war"], "wie war das Wetter": ["wetter"]}
    assert [term.forms for term in Analyzer().query("war", tags)] == [(TAGS["en"] + "war",)]
