"""Words whose stems differ between versions of a stemmer: each language's own endings on its own words."""

from __future__ import annotations

PROBES: dict[str, list[str]] = {
    language: words.split()
    for language, words in {
        "ar": """
            المكتبات والمعلمون كتابها يدرسون مدارسهم الطالبات فسيكتبونها استخدامات بالحاسوب للمستخدمين أعمالنا مسؤولية
        """,
        "ca": """
            cançons ràpidament treballadors nacionalitat estudiaven possibilitats antigues corrents preguntes
            ensenyança
        """,
        "cs": """
            pracovníků možnostech nejlepšími otázkami městského hledání knihovnách studentka psali rychlejšího
            důležitost
        """,
        "da": """
            undersøgelserne arbejdsløshed virksomhederne mulighederne læreren børnenes hurtigste uafhængighed bøgerne
        """,
        "de": """
            häuser haeuser größe schmierstoffwechsel prüfungen mächtiger freundlichkeiten wissenschaftlerinnen
            aufeinander arbeitslosigkeit kategorischen ergänzten systemen erhalten zuverlässigste gemütlich kinder
            steuern quälen neues lehrerin lehrerinnen blumen messen steuer abenteuer bäuerlich feuers buchungen
            übungsplätze innere
        """,
        "el": """
            αντλίες λειτουργούν ανθρώπους μεγαλύτερων βιβλιοθήκης ερωτήσεις εργαζόμενοι γρήγορα παιδιών πολιτικές
        """,
        "en": """
            running generously relational flies dying organization skies national conditionally hopefulness university
            news inning agreed controlling communities electricity happiest lately added evenly ties past owed paste
            hopping hoped internal generalization arsenal commune proceed early only sensibilities formalize
        """,
        "eo": """
            laboristoj malsanulejo rapidege bibliotekojn esperantistino lernantojn parolante belaj kantistino estonta
        """,
        "es": """
            corriendo canciones rápidamente bibliotecas posibilidades trabajadores estudiábamos nacionalidad
            diciéndole
        """,
        "et": """
            raamatukogudes töötajatele küsimustega õpilased kiiremini võimaluste linnades ülikoolist laulsid suurem
        """,
        "eu": """
            liburutegiak langileentzat galderekin mendietara umearen azkarragoak etxeetatik ikasleekin lanean
            herrietako
        """,
        "fa": """
            کتابخانه‌ها می‌نویسند دانشجویان بزرگترین کارمندان پرسش‌هایشان خانه‌هایمان نوشته‌اند شهرهای رفتیم
        """,
        "fi": """
            kirjastoissa työntekijöille kysymyksistä mahdollisuuksien nopeammin taloissaan opiskelijat laulavat
            suurinta
        """,
        "fr": """
            nationales continuellement chevaux rapidement bibliothèques travailleurs possibilités étudiaient
            finissaient
        """,
        "ga": """
            leabharlanna bhfostaithe ceisteanna múinteoirí dtithe scríobhann oibreachais náisiúnta chathair hathair
        """,
        "hi": """
            किताबें लड़कियों विद्यार्थियों पुस्तकालयों प्रश्नों लिखूंगा खाऊंगी बोलने घरों कर्मचारियों
        """,
        "hu": """
            könyvtárakban dolgozóknak kérdésekkel lehetőségeket gyorsabban házaikból tanulókat énekeltek almáért
        """,
        "hy": """
            գրադարաններում աշխատողների հարցերով հնարավորությունները արագությամբ տներից ուսանողներին երգում էին
        """,
        "id": """
            perpustakaannya pekerjaan pertanyaan menuliskan kemungkinannya membacakan diperbaiki pelajaran bukulah
        """,
        "it": """
            biblioteche rapidamente lavoratori possibilità nazionalizzazione studiavano domandandosi canzoni
            portarglielo
        """,
        "lt": """
            bibliotekose darbuotojams klausimais galimybės greičiausiai namuose studentės dainavo didžiausias
            miestuose
        """,
        "ne": """
            किताबहरू विद्यार्थीहरूले पुस्तकालयमा लेखिरहेका घरबाट गर्नुहुन्छ बोलेको मान्छेहरूलाई
        """,
        "nl": """
            bibliotheken werknemers mogelijkheden lichamelijkheid vragen snelste huizen gelopen studenten opgravingen
            gemaakt baarden eerlijkste zeeën kaarten loopt lopende paarden
        """,
        "no": """
            bibliotekene arbeidstakerne mulighetene undersøkelsene raskeste uavhengighet bøkene sangeren skrivende
        """,
        "pl": """
            bibliotekach pracowników pytaniami możliwości najszybszego domach studentki śpiewali największy miejskich
        """,
        "pt": """
            bibliotecas rapidamente trabalhadores possibilidades nacionalização estudávamos canções dizendo corações
        """,
        "ro": """
            bibliotecile lucrătorilor întrebările posibilităților naționalitate studenților cântând frumoaselor
            orașelor
        """,
        "ru": """
            библиотеках работников вопросами возможности быстрейшего насосы работают студентки написавшись важнейшими
            ёлкой
        """,
        "sr": """
            библиотекама радницима питањима могућностима најбрже кућама певали bibliotekama radnicima pitanjima
            mogućnosti
        """,
        "st": """
            dibuka basebetsi dipotso matlo baithuti ngotse ratehang bohlale motseng sebelisoa
        """,
        "sv": """
            biblioteken arbetarnas möjligheterna undersökningarna snabbaste självständighet böckerna studenternas
            frågades
        """,
        "ta": """
            நூலகங்களில் பணியாளர்களுக்கு கேள்விகளால் வீடுகளிலிருந்து மாணவர்கள் எழுதுகிறார்கள் பாடினார்கள் பெரியதாக
        """,
        "tr": """
            kütüphanelerde çalışanların sorularımızdan olanaklarını evlerimizden öğrencilerin şarkıcılar büyüklüğünde
        """,
        "yi": """
            ביכער ארבעטערס פראגעס געשריבן שנעלסטע הייזער סטודענטן געזונגען מעגלעכקייטן
        """,
    }.items()
}

TEXT = """
Running ERR_2043 HS-4410-B C++ C# v1.2.3 user@example.com § 433 §312b getUserName covid19 IL-6 1,000.50 U.S.A. naïve
it's l'avion Straße İstanbul ﬁlter Ｐump Été Ωμέγα 电池维护 泵 ポンプは動 펌프가 ภาษาไทย ២៣ كِتَاب ١٢٣ किताबें தமிழ் שלום
"""
"""A text whose words differ between tokenisations, in most scripts."""
