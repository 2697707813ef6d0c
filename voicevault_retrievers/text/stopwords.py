"""Stopwords, which are ignored in documents and identify languages. The English list is that of Lucene."""

from __future__ import annotations

from unicodedata import normalize

STOPWORDS: dict[str, frozenset[str]] = {
    language: frozenset(normalize("NFKC", words).casefold().split())
    for language, words in {
        "ar": """
            من في على إلى الى عن مع هذا هذه ذلك تلك التي الذي الذين اللذان اللاتي هو هي هم هن نحن أنا أنت كان كانت
            كانوا يكون تكون أن إن ان لا ما لم لن قد ثم أو او بل كل بعض بين عند عندما حتى منذ حيث كما لكن ولكن إذا اذا
            غير بعد قبل فقط أي اي أيضا ايضا هناك هنا له لها لهم به بها فيه فيها منه منها عليه عليها إليه إليها وهو وهي
            ومن وفي وقد وكان وكانت أما مثل خلال ضد ليس ليست سوف
        """,
        "ca": """
            el la els les un una uns unes de del dels d l i o a al als amb en per pel pels que què qui com no és són
            era ser ha han va van més però si es s se li lo em ens us hi ho n m t aquest aquesta aquests aquestes això
            aquell aquella seu seva seus seves també molt molts quan on entre sobre fins sense ja com cada tot tots
            totes altres perquè estat està estan tenir té van fer després abans mateix doncs
        """,
        "cs": """
            a aby ale ani až bez bude budou by byl byla byli bylo být co což či další do ho i j jak jako je jeho
            jejich její jen ještě již jsem jsme jsou jste k kde kdo když která které který kteří ku má mají mezi mít
            může na nad nebo než není o od po pod podle pokud pouze pro proto protože před přes při s se si své svůj
            ta tak také tam tato tedy ten tento této tím to toho tohoto tom tomto tu ty u už v ve však všechny vám vás
            z za ze že
        """,
        "da": """
            af alle alt anden at blev blive bliver da de dem den denne der deres det dette dig din disse dog du efter
            eller en end er et for fra få ham han hans har havde have hende hendes her hos hun hvad hver hvert hvis
            hvor hvordan hvornår i ikke ind ja jeg jer jo kan kun kunne lige man mange med meget men mere mig min mod
            må når nej nogen noget nogle nu og også om op os over på sig sin skal skulle som så til ud under var vi
            vil ville være været
        """,
        "de": """
            aber als am an auch auf aus bei bin bis bist da das dass dem den der des die du durch ein eine einem einen
            einer eines er es für hat ich ihr im in ist ja mit nach nicht noch nun nur ob oder sich sie sind so über
            um und uns unter vom von vor war was wie wir wird zu zum zur diese dieser dieses diesem diesen haben hatte
            werden wurde wurden sein seine seiner kann können sowie wenn weil welche welcher welches wer wo kein keine
            ihre ihren ihrer mein mich mir dir dich man mehr sondern zwischen gegen ohne bzw denn damit jede jeder
            jedes
        """,
        "el": """
            ο η το οι τα του της των τον την τη στο στη στην στον στα στις στους τους τις ένα ένας μια μία και κι ή να
            θα δεν μη μην με σε από για ως προς κατά μετά παρά αντί επί που πως πώς ότι όταν όπως αν αλλά όμως είναι
            ήταν έχει έχουν είχε αυτό αυτός αυτή αυτά αυτοί αυτές αυτών μου σου μας σας τι ποιος ποια ποιο πού πότε
            γιατί πολύ πιο κάθε όλα όλοι όσο μόνο ακόμη ακόμα ήδη μεταξύ χωρίς
        """,
        "en": """
            a an and are as at be but by for if in into is it no not of on or such that the their then there these
            they this to was will with
        """,
        "es": """
            el la los las un una unos unas de del al a y e o u en con por para sin sobre entre hasta desde hacia que
            qué quien quién cual cuál como cómo cuando cuándo donde dónde cuánto cuántos no ni se su sus lo le les me
            te nos mi es son era eran fue fueron ser sido está están estaba estar ha han había hay haber más menos muy
            pero si sí también ya este esta estos estas esto ese esa esos esas eso aquel cada porque durante otro otra
            otros otras todo todos toda todas mismo tiene tienen puede sino
        """,
        "et": """
            aga ei ega ehk et ette ja ju ka kas kes kui kuid kuidas kuna kus kust ma me mida mille millal mis miks
            mina minu mitte ning nad need nende neid nii nüüd oli olid olla on oma pole peale pärast pea seda see
            selle siin siis ta tema teie te tuleb veel vaid või välja üks üle kõik saab saada seal sest sellest selles
            millest enne juures koos läbi iga kuni olema olnud ole poolt vastu
        """,
        "eu": """
            eta edo baina ere da dira zen ziren du dute zuen zuten dago daude ez bai hau hori hura hauek horiek haiek
            honen horren haren bat batzuk bere beren beste izan izango egin egiten dela duen den dituen dituzte zituen
            zer nor non noiz nola zergatik zein zeinen baino bezala arte gabe gainean artean ondoren oso hemen han hor
            ni zu gu hain guztiak guzti baita bidez kontra aurka dio dugu naiz gara zaio ari
        """,
        "fa": """
            و در به از که این آن را با است برای یک تا بر هم نیز یا اما اگر هر چه ما شما او من تو آنها ایشان خود شد شده
            شود بود بودند باشد هست هستند نیست می نمی کرد کردن کرده کند کنند دارد دارند داشت داشته همه هیچ چند بین پس
            پیش بعد روی زیر چون چرا کجا کی چگونه همین همان دیگر باید ولی وی های ها ای گفت اند
        """,
        "fi": """
            ei eivät ett että he hän hänen ja jo joka joita jolla jonka jos jota jotka kanssa koska kuin kuinka kun
            kuka mikä mitä missä mistä milloin miksi minkä minä minun me mutta myös mukaan ne niiden niin niitä nyt
            nämä näiden ole olen oli olivat olla ollut on ovat ovatko oma se sen sekä sinä sitä sillä siitä siihen
            siinä tai te tämä tämän tätä tässä tästä tuo vain vaan vielä voi voidaan kaikki jälkeen ennen kautta
            joiden hyvin sinun
        """,
        "fr": """
            le la les l un une des du de d au aux et ou en dans par pour sur sous avec sans ce c cet cette ces que qu
            qui quoi quel quelle quels quelles dont où comment quand pourquoi combien est sont était étaient être été
            a ont avait avoir il elle ils elles on nous vous je j tu me m te t se s y ne n pas plus moins mais si son
            sa ses leur leurs mon ma mes notre votre nos vos lui eux comme aussi très entre vers chez depuis pendant
            jusqu même tout tous toute toutes autre autres fait lorsqu puisqu lorsque puisque ainsi donc car
        """,
        "ga": """
            an na agus is bhí tá níl ní nach go gur gurb gus le leis leo ar ag aige aici as de den do don dá faoi i in
            sa san sna ina inar mar ó ón um thar trí tríd chun nó ach má dá cé cad conas cathain cá sé sí siad mé tú
            muid sinn sibh é í iad a mo do ár bhur seo sin siúd eile gach aon an-bheag féin freisin ann bheith raibh
            beidh bíonn déanta roimh idir gan
        """,
        "hi": """
            का की के को से में पर और या है हैं था थी थे हो होता होती होते हुआ हुई हुए कि जो यह ये वह वे इस इन उस उन
            इसके उसके उनके इसकी उसकी उनकी इसका उसका अपने अपनी अपना ने भी ही तो नहीं न एक कर करने करता करते करना किया
            किए गया गई गए जा जाता जाती जाते रहा रही रहे लिए साथ तक बाद द्वारा क्या कौन कब कहाँ कैसे क्यों किस जब तब
            अगर लेकिन मैं हम आप तुम मेरा सकता सकते सकती कुछ सभी
        """,
        "hu": """
            a az egy és vagy de hogy nem is ez ezt ezek azt azok ezen azon ennek annak erre arra ha mint csak már még
            meg el ki be fel le van vannak volt voltak lesz lenne lehet lett mert pedig így úgy akkor amely amelyek
            amelyet aki akik ami amit ahol amikor mi mit mikor hol hogyan miért milyen melyik én te ő mi ti ők minden
            más után előtt alatt között szerint által át több sem se igen ne nagyon majd kell utána vele
        """,
        "hy": """
            և եւ ու է են էր էին եմ ես եք ենք այդ այս այն որ որը որի որոնք ով ինչ երբ որտեղ ինչպես ինչու մեջ մի մեկ
            համար հետ վրա մասին մոտ տակ ից իր իրենց նա նրա նրանք նրանց դա սա դրանք մենք դուք ոչ չի չէ չեն չէր կամ բայց
            իսկ եթե նաև ըստ միայն բոլոր ամեն հետո առաջ պես որպես կարող պետք լինել եղել կա կան
        """,
        "id": """
            yang dan di ke dari untuk dengan pada dalam adalah ialah itu ini atau juga oleh sebagai tidak bukan akan
            telah sudah belum dapat bisa harus ada mereka kami kita saya aku anda kamu ia dia nya para bahwa karena
            tetapi namun jika bila kalau saat ketika sementara seperti antara hingga sampai setelah sebelum secara
            lebih paling sangat hanya semua setiap suatu sebuah seorang apa siapa mana kapan bagaimana mengapa kenapa
            berapa lain agar maka lagi masih yaitu tersebut menjadi
        """,
        "it": """
            il lo la i gli le l un uno una di del dello della dei degli delle dell d a al allo alla ai agli alle all
            da dal dalla dai dalle dall in nel nello nella nei negli nelle nell su sul sulla sui sulle sull con per
            tra fra e ed o che chi cui come quando dove perché quale quali quanto quanti non più meno ma se si è sono
            era erano essere stato stata ha hanno aveva avere ci c vi ne lui lei loro io tu noi voi mi ti suo sua suoi
            sue questo questa questi queste quello quella quelli anche molto dopo prima già ogni tutto tutti tutte
            altri durante cosa così quest
        """,
        "lt": """
            ir ar bet kad kaip kas ko kam ką kur kada kodėl kuris kuri kurie kurios kurį kurių yra buvo būti bus nėra
            ne nei į iš su po per prie prieš už už nuo iki apie tarp dėl be pagal ant pas tai tas ta tie tos to šis ši
            šie šios šio jis ji jie jos jo jų juos aš tu mes jūs mano savo man jau dar tik taip pat labai kai jei
            jeigu nes arba o visi visų kiti kita kitų gali turi buvę metu
        """,
        "ne": """
            र को का की मा ले लाई बाट देखि सम्म सँग छ छन् छैन थियो थिए हो होइन हुन् हुन्छ भएको भएका भयो भने भन्ने पनि
            यो यस त्यो त्यस यी ती उनी उनले उनको तर वा कि एक गर्न गर्ने गरेको गरेका गरे गर्दै गर्छ लागि तथा नै मात्र
            अनि के को कहाँ कहिले किन कसरी कुन जुन जो म हामी तपाईं तिमी आफ्नो हरू हरूको अरू सबै केही अब पछि अघि जस्तो
            रूपमा गरी गर्नु छु छौं
        """,
        "nl": """
            de het een en of van in op te ten ter aan bij met voor door naar uit over onder tegen tot om als dan dat
            die dit deze is zijn was waren wordt worden werd werden heeft hebben had hadden kan kunnen kon zal zullen
            zou moet moeten mag niet geen ook maar meer nog al er hier daar waar wat wie welke hoe wanneer waarom hij
            zij ze ik je jij u we wij hun haar hem zich mijn uw ons onze zo want toen nu na sinds tussen zonder
            tijdens omdat alle veel andere
        """,
        "no": """
            alle at av ble bli blir da de dem den denne der deres det dette disse du eller en enn er et etter for fra
            før ha hadde han hans har hennes her hos hun hva hvem hver hvert hvilken hvilke hvis hvor hvordan hvorfor
            i ikke ingen inn jeg kan kom kun kunne man mange med meg meget mellom men mer min mot må noe noen nå når
            og også om opp oss over på seg si sin sine skal skulle slik som så til um under ut uten vi vil ville var
            vært være
        """,
        "pl": """
            a aby ale ani bardzo bez bo był była było były być bym by co czy czyli dla do gdy gdzie go i ich ile im
            inne iż ja jak jako jakie jego jej jest jestem jeszcze jeśli już każdy kiedy kto która które którego
            której który których którzy lub ma mają mi między mnie może można na nad nam nas nich nie nim niż o od on
            ona one oni oraz po pod podczas ponieważ przed przez przy się są swoje ta tak także tam te tego tej ten
            też to tu ty tych tylko tym u w we wszystkie wśród z za ze że
        """,
        "pt": """
            o a os as um uma uns umas de do da dos das d em no na nos nas ao aos à às e ou que quem qual quais como
            quando onde porque por pelo pela pelos pelas para com sem sob sobre entre até desde não nem se seu sua
            seus suas lhe lhes me te nós eu você vocês ele ela eles elas é são era eram foi foram ser sido está estão
            estava estar há tem têm tinha ter mais menos muito mas também já este esta estes estas isto esse essa
            esses essas isso aquele aquela cada mesmo outro outra outros outras todo todos toda todas num numa pode
            após durante
        """,
        "ro": """
            a al ale ai ca că care ce cel cea cei cele cu cum cât câte când cine de din dar da după e este ești el ea
            ei ele era erau eu fi fie fost fără iar în într îl îi își la le lui lor mai mult multe mea meu ne ni nici
            nu o or pe pentru pe prin până sa sale sau se sunt su său sub să și spre tot toate toți tu un una unei
            unor unui unde va vor vă avea are au am acest această aceste acestea acesta acea acel astfel fiecare între
            către doar deci dacă decât doi alt alte
        """,
        "ru": """
            а без более бы был была были было быть в вам вас весь во вот все всего всех вы где да для до его ее её
            если есть еще ещё же за здесь и из или им их к как какой какие когда который которая которые которого
            которых кто ли либо между меня мне может мы на над не него нее ней нет ни них но ну о об однако он она они
            оно от очень по под после потому почему при с сам свой своей своих себя сколько со так также такой там те
            тем то того той только том тот ты у уже хотя чего чем что чтобы эта эти это этого этой этом этот этих я
            является
        """,
        "sr": """
            а али ако без би био била били било бити већ га где да до док за зашто и из или им их је јер ја још к када
            као ка која које који којих кроз ко ли ме међу мој може на над након не него неки није нису но о од он она
            они оно по под после пре при са само се сам сви свој си смо су та тада тако такође те ти то тога тој том
            тај у уз шта што ће ћу чак овај ова ово ових њих његов његова њен
            a ali ako bez bi bio bila bili bilo biti već ga gde gdje da do dok za zašto i iz ili im ih je jer ja još k
            kada kao ka koja koje koji kojih kroz ko tko li me među moj može na nad nakon ne nego neki nije nisu no o
            od on ona oni ono po pod posle poslije pre prije pri sa samo se sam svi svoj si smo su s ta tada tako
            također takođe te ti to toga toj tom taj u uz šta što će ću čak ovaj ova ovo ovih njih njegov njegova njen
        """,
        "sv": """
            alla allt andra att av bara blev bli blir bland då de dem den denna deras dess dessa det detta dig din du
            där därför efter eller en ett enligt er från för före genom ha hade han hans har hela henne hennes hos hon
            hur här i in inom inte jag ju kan kommer kunde kunna man med mellan men mer mig min mot mycket måste ni nu
            någon något några när och också om oss på samma sedan sig sin sina sitt ska skall skulle som så till under
            upp ut utan vad var vara varit varför vem vi vid vilka vilken vilket vill år än är även över
        """,
        "ta": """
            ஒரு என்று மற்றும் இந்த அந்த என்ற ஆகும் உள்ளது உள்ள இது அது இவை அவை அவர் அவர்கள் அவன் அவள் நான் நாம்
            நாங்கள் நீ நீங்கள் எந்த என்ன எப்படி எங்கே எப்போது ஏன் யார் எது பல சில மேலும் ஆனால் அல்லது இருந்து இருந்த
            இருக்கும் இருந்தது கொண்டு கொண்ட வேண்டும் முடியும் போது பின்னர் முன் வரை மட்டும் போன்ற மூலம் தான் கூட
            மிகவும் அதன் இதன் தனது எனவே இல்லை அதிக பற்றி ஆகிய எனும் உடன் பிறகு
        """,
        "tr": """
            ve ile bir bu şu o da de ki mi mı mu mü için gibi kadar daha çok az en ne nasıl neden niçin nerede nereye
            hangi kim kaç ama fakat ancak veya ya yani çünkü ise eğer değil var yok olan olarak oldu olduğu olduğunu
            olmak olur ben sen biz siz onlar onu ona onun bunun bunu buna her hiç bazı tüm bütün sonra önce göre karşı
            doğru üzere tarafından kendi aynı diye hem şey zaman arasında bile böyle
        """,
        "eo": """
            la kaj de en al estas estis estos esti ne kiu kiuj kio kiel kiam kie kial por kun sed aŭ pri el da ke mi
            vi li ŝi ĝi ni ili tio tiu tiuj ĉi sur per inter post antaŭ ĉe pli tre ankaŭ nur se ol ĝis sia siaj unu
        """,
        "st": """
            le ya ba ha e ke ka ho o di mo se tsa wa la sa bo tse hore empa kapa ea ena bona yona haeba joalo jwalo
            hape feela hona moo eo ao eno kajeno teng
        """,
        "yi": """
            און אין די דער דאס דאָס דעם פון פֿון צו מיט אויף איז זענען זײַנען איז געווען געווארן אַ אַן א אן ניט נישט
            אז אַז ווי וואס וואָס ווער ווען וואו פאר פֿאַר ער זי עס מיר איר זיי איך דו אבער אָבער אויך נאך נאָך ביי
            בײַ האט האָט האבן האָבן
        """,
    }.items()
}

ENGLISH = STOPWORDS["en"] | frozenset(
    """
    about after all also am any been before between both can come could did do does don during each end few from get
    go had has have he her here him his how i i'm i've it's its may me men more most must my need non nor one only
    other our out over per pre pro see she should since so some than them those through under until up upon us use
    used using very via want we were what when where whether which while who whom whose why would you your don't
    doesn't didn't isn't aren't can't won't that's class def else false import null os print return self str true
    ale art bat bin care car comment dam den die dog door era fat fin fort hat inn man mere met mine mist order plus
    post pour sale same sense sin son sub sun ten tie van war
    """.split()
)
"""The words by which English and code are detected. The words that are not Lucene's are kept in documents.

Some are stopwords in other languages: "dog" is Danish for "however", "die" a German article.
"""

AMBIGUOUS = frozenset(
    """
    alt an anda arte as beste bile bin bis car care come comment con dan dar de dem den der die dig dir dog don door du
    eine el end er era et fin fort go han hat hem her hier iki in kam kamu kim los man mar me men mere met min mis mit
    mitte need non on one para per plus por pour pro sale sam san see sen sense ser ses sin son su sub sur tam tema
    ten ton uno van var via von want war was will
    """.split()
)
"""Stopwords of one language that may be content words of another: war, sin, su (Turkish for water)."""
