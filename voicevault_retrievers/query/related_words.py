"""Synonyms of technical documents, and the nouns that interrogatives ask for, by language.

Each line has Solr's format: `a, b` are synonyms of each other, `a => b` is one way. Words are found by their stems. The
lists are limited to instructions, faults, prices and measures, where a word means the same in most documents; synonyms
of a single field belong in `SynonymExpansion`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SPELLINGS: Mapping[str, str] = {
    "en": """
        back up => backup
        check out => checkout
        data base => database
        data set => dataset
        email, e-mail
        file name => filename
        home page => homepage
        key word => keyword
        login, logon
        log in, log on => login, logon
        log out, log off => logout
        look up => lookup
        online, on-line
        roll back => rollback
        set up => setup
        shut down => shutdown
        sign up => signup
        start up => startup
        time out => timeout
        time stamp => timestamp
        user name => username
        web site => website
        wifi, wi-fi
        work flow => workflow
        percent, percentage
        per cent => percent, percentage
        kilometre, km
        centimetre, cm
        millimetre, mm
        kilogram, kg
        milligram, mg
        kilowatt, kW
        megahertz, MHz
        gigabyte, GB
        megabyte, MB
    """,
    "de": """
        E-Mail, Email
        Daten-Bank => Datenbank
        WLAN, W-LAN
        Fotografie, Photographie
        Grafik, Graphik
        Potenzial, Potential
        Kilometer, km
        Zentimeter, cm
        Millimeter, mm
        Kilogramm, kg
        Milligramm, mg
        Kilowatt, kW
        Gigabyte, GB
        Megabyte, MB
    """,
}
"""Spellings of the same word, and units with their symbols. Separately written words gain the joined spelling, and not
the reverse, as the parts of a joined word are words of their own.
"""

RELATED: Mapping[str, str] = {
    "en": """
        reset, restart, reboot
        fix, repair
        remove, delete, uninstall
        replace, exchange, swap
        error, fault, failure, malfunction
        broken, defective, faulty
        issue, problem
        alarm, alert, warning
        install, mount
        set up, configure
        disable, deactivate, switch off, turn off
        enable, activate, switch on, turn on
        start, begin, launch
        stop, halt, shut down
        check, inspect, verify
        maintain, service
        maintenance, servicing, upkeep
        buy, purchase
        price, cost
        permitted, allowed
        forbidden, prohibited
        mandatory, required, compulsory
        picture, image
        film, movie
        car, vehicle
        doctor, physician
        illness, disease
        company, firm
        employee, staff, personnel
        holiday, vacation
        manual, handbook
        password, passphrase
        folder, directory
        what is a, what is an, what is meant by, what does it mean => definition
        how long => duration, time
        how often => frequency, interval
        how far => distance
        how deep => depth
        how high => height
        how tall => height
        how wide => width
        how heavy => weight
        how fast => speed
        how hot => temperature
        how cold => temperature
        how old => age
        how big => size
        how large => size
        who wrote => author
    """,
    "de": """
        zurücksetzen, neu starten, neustarten
        reparieren, instandsetzen, beheben
        löschen, entfernen
        ersetzen, austauschen, auswechseln, tauschen
        Fehler, Störung, Defekt
        kaputt, defekt, beschädigt
        Alarm, Warnung
        installieren, montieren
        einrichten, konfigurieren
        ausschalten, abschalten, deaktivieren
        einschalten, anschalten, aktivieren
        starten, beginnen
        stoppen, anhalten
        prüfen, überprüfen, kontrollieren
        Wartung, Instandhaltung
        kaufen, erwerben
        Preis, Kosten
        erlaubt, zulässig, gestattet
        verboten, untersagt, unzulässig
        Bild, Abbildung
        Auto, Fahrzeug, Wagen
        Arzt, Mediziner
        Firma, Unternehmen
        Mitarbeiter, Angestellte, Personal
        Urlaub, Ferien
        Handbuch, Anleitung
        Passwort, Kennwort
        Ordner, Verzeichnis
        was ist ein, was ist eine, was heißt, was bedeutet => Definition
        wie lange => Dauer, Zeit
        wie oft => Häufigkeit, Intervall
        wie weit => Entfernung, Abstand
        wie tief => Tiefe
        wie hoch => Höhe
        wie breit => Breite
        wie schwer => Gewicht
        wie schnell => Geschwindigkeit
        wie heiß => Temperatur
        wie kalt => Temperatur
        wie alt => Alter
        wie groß => Größe
    """,
}


_NEVER_Z = "".join(
    f"(?<!{stem})"
    for stem in "adv rev dev superv telev prec prom comprom surpr exerc otherw likew expert franch enterpr conc prem "
    "parad merchand treat disgu cru bru no po ra ad".split()
)

_BRITISH = tuple(
    (re.compile(pattern), british)
    for pattern, british in (
        (
            r"^((?:mis|dis)?(?:arm|behavi|col|endeav|fav|flav|harb|hon|hum|lab|neighb|od|rum|savi|splend|tum|vap|vig))or"
            r"(?=$|s$|ed$|ing$|al$|able$|ful$|ite$|less$|hood$|ly$)",
            r"\1our",
        ),
        (r"(?<=[a-z]{3})(?<!res)(?<!caps)(?<!downs)iz(?=e$|ed$|es$|er$|ers$|ing$|ation|able)", "is"),
        (r"(?<=[a-z]{3})yz(?=e$|ed$|er$|ers$|ing$)", "ys"),
        (r"^(cent|fib|lit|theat|calib|(?:kilo|centi|milli)?met|lust|spect)er(?=s?$)", r"\1re"),
        (r"^(catal|dial|anal)og(?=s?$)", r"\1ogue"),
        (r"^(def|off|pret)ense(?=s?$)", r"\1ence"),
        (r"((?:trav|canc|mod|lab|lev|fu|sign|tunn|chann|pan|tot|quarr)[aeiu])l(?=(?:ed|ing|ers?)$)", r"\1ll"),
        (r"^sulf(?=[aiou])", "sulph"),
        (r"^aluminum", "aluminium"),
        (r"^gray(?=$|s$|ish$)", "grey"),
        (r"^(an|leuk|isch)em(?=i)", r"\1aem"),
        (r"^(p)ed(?=iatr)", r"\1aed"),
        (r"^(an)es(?=th)", r"\1aes"),
        (r"^hem(?=o[^r]|at)", "haem"),
        (r"^est(?=rogen)", "oest"),
        (r"^edema", "oedema"),
        (r"^tire(?=s?$)", "tyre"),
    )
)

_RULES = tuple(
    (re.compile(pattern), american)
    for pattern, american in (
        (r"(?<=[a-z]{2})our(?=$|s$|ed$|ing$|al|able|ful|ist|ite|less|hood|ly$)", "or"),
        (rf"(?<=[a-z]{{3}}){_NEVER_Z}is(?=e$|ed$|es$|er$|ers$|ing$|ation|able)", "iz"),
        (r"(?<=[a-z]{3})ys(?=e$|ed$|er$|ers$|ing$)", "yz"),
        (r"(?<=[a-z]{3})re(?=s?$)", "er"),
        (r"(?<=[a-z]{3})ogue(?=s?$)", "og"),
        (r"(?<=[a-z]{3})ence(?=s?$)", "ense"),
        (r"((?:^|[aeiou])[^aeiou]+[aeiou]+[^aeiou]+[aeiou])ll(?=(?:ed|ing|ers?)$)", r"\1l"),
        (r"aem", "em"),
        (r"aes(?=th)", "es"),
        (r"(?<=ch)aeo|(?<=ch)oeo", "eo"),
        (r"(?<=gyn)aec", "ec"),
        (r"(?<=p)aed", "ed"),
        (r"oed(?=em)", "ed"),
        (r"oes(?=tr|oph)", "es"),
        (r"(?<=f)oet", "et"),
        (r"(?<=rh)oea", "ea"),
        (r"sulph", "sulf"),
        (r"aluminium", "aluminum"),
        (r"(?<=progra)mme(?=s?$)", "m"),
        (r"^grey", "gray"),
    )
)


def american(word: str) -> str:
    """The American spelling of a word in lower case. For any word that is not British, it may be no word at all."""
    for pattern, replacement in _RULES:
        word = pattern.sub(replacement, word)
    return word


def regional(word: str) -> list[str]:
    """The American and British spellings of a word that differ from it, and that convert back to it."""
    found = (american(word), british(word))
    return [other for other in found if other != word and word in (american(other), british(other))]


def british(word: str) -> str:
    """The British spelling of a word in lower case, or the word itself; see `american`."""
    for pattern, replacement in _BRITISH:
        word = pattern.sub(replacement, word)
    return word
