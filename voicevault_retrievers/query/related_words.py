"""Words that technical documents use for one another, and the nouns that a question asks for, by language.

Each line is one of Solr's format: `a, b` stand for one another, `a => b` is one way. Words are found by their stems,
whatever their form. Kept to instructions, faults, prices and measures, where a word means the same in most documents:
what holds in one field alone is for `SynonymExpansion`.
"""

from __future__ import annotations

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
"""Spellings of one word, and units with their signs. What is written apart gains what is written as one, and not the
other way round: its parts are words of their own."""

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
