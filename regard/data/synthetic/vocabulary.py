"""The tables of the phrasebook's words, to be read and extended by hand; `lexicon` turns them into objects.

Nouns: classes, English singular, plural where irregular (- for mass nouns) | German gender (w: weak masculine),
nominative, genitive (- if the same), plural, for places the preposition of "to" | Turkish stem, and before vowels.
Adjectives: classes (t: of someone today, not always; c: of what is counted), English, comparative (- if none) |
German, stem if different, comparative | Turkish.
Verbs: English base, past, participle, +particle, ~preposition | German prefix-infinitive, third person, preterite,
participle, h or s for haben or sein, governed preposition and case | Turkish light noun and stem, =case of the object |
frames as frame:subjects:objects | flags: s stative, k lasting, S always marked object, p passive, c calm.
"""

NOUNS = """
P man men | m Mann Mannes Männer | adam
P woman women | f Frau - Frauen | kadın
P child children | n Kind Kindes Kinder | çocuk çocuğ
P girl | n Mädchen Mädchens Mädchen | kız
P boy | w Junge Jungen Jungen | oğlan
P teacher | m Lehrer Lehrers Lehrer | öğretmen
P student | w Student Studenten Studenten | öğrenci
P doctor | m Arzt Arztes Ärzte | doktor
P neighbour | w Nachbar Nachbarn Nachbarn | komşu
P friend | m Freund Freundes Freunde | arkadaş
P farmer | w Bauer Bauern Bauern | çiftçi
P king | m König Königs Könige | kral
P queen | f Königin - Königinnen | kraliçe
P baker | m Bäcker Bäckers Bäcker | fırıncı
P writer | m Schriftsteller Schriftstellers Schriftsteller | yazar
P painter | m Maler Malers Maler | ressam
P singer | m Sänger Sängers Sänger | şarkıcı
P mother | f Mutter - Mütter | anne
P father | m Vater Vaters Väter | baba
P uncle | m Onkel Onkels Onkel | amca
P aunt | f Tante - Tanten | teyze
P guest | m Gast Gastes Gäste | misafir
P driver | m Fahrer Fahrers Fahrer | şoför
P waiter | m Kellner Kellners Kellner | garson
P nurse | f Krankenschwester - Krankenschwestern | hemşire
P engineer | m Ingenieur Ingenieurs Ingenieure | mühendis
P lawyer | m Anwalt Anwalts Anwälte | avukat
P soldier | w Soldat Soldaten Soldaten | asker
P grandmother | f Großmutter - Großmütter | büyükanne
P grandfather | m Großvater Großvaters Großväter | dede
P thief thieves | m Dieb Diebes Diebe | hırsız
A dog | m Hund Hundes Hunde | köpek köpeğ
A cat | f Katze - Katzen | kedi
A horse | n Pferd Pferdes Pferde | at
A bird | m Vogel Vogels Vögel | kuş
A mouse mice | f Maus - Mäuse | fare
A cow | f Kuh - Kühe | inek ineğ
A bear | w Bär Bären Bären | ayı
A lion | w Löwe Löwen Löwen | aslan
A rabbit | w Hase Hasen Hasen | tavşan
A elephant | w Elefant Elefanten Elefanten | fil
A duck | f Ente - Enten | ördek ördeğ
A goat | f Ziege - Ziegen | keçi
T key | m Schlüssel Schlüssels Schlüssel | anahtar
T cup | f Tasse - Tassen | fincan
T umbrella | m Regenschirm Regenschirms Regenschirme | şemsiye
T bag | f Tasche - Taschen | çanta
T ball | m Ball Balls Bälle | top
T knife knives | n Messer Messers Messer | bıçak bıçağ
T bottle | f Flasche - Flaschen | şişe
T ring | m Ring Ringes Ringe | yüzük yüzüğ
T gift | n Geschenk Geschenks Geschenke | hediye
T flower | f Blume - Blumen | çiçek çiçeğ
T guitar | f Gitarre - Gitarren | gitar
T mirror | m Spiegel Spiegels Spiegel | ayna
TW picture | n Bild Bildes Bilder | resim resm
M lamp | f Lampe - Lampen | lamba
M phone | n Telefon Telefons Telefone | telefon
M computer | m Computer Computers Computer | bilgisayar
M radio | n Radio Radios Radios | radyo
C hat | m Hut Hutes Hüte | şapka
C coat | m Mantel Mantels Mäntel | palto
C shirt | n Hemd Hemdes Hemden | gömlek gömleğ
C dress dresses | n Kleid Kleides Kleider | elbise
X book | n Buch Buches Bücher | kitap kitab
X letter | m Brief Briefes Briefe | mektup mektub
X newspaper | f Zeitung - Zeitungen | gazete
X poem | n Gedicht Gedichts Gedichte | şiir
XN story stories | f Geschichte - Geschichten | hikâye
W film | m Film Films Filme | film
FSUH table | m Tisch Tisches Tische | masa
FSUH chair | m Stuhl Stuhls Stühle | sandalye
FSUH bed | n Bett Bettes Betten | yatak yatağ
FSH sofa | n Sofa Sofas Sofas | kanepe
UH tree | m Baum Baumes Bäume | ağaç ağac
QH wall | f Wand - Wände | duvar
OH door | f Tür - Türen | kapı
OH window | n Fenster Fensters Fenster | pencere
OSH box boxes | f Kiste - Kisten | kutu
QSUH bridge | f Brücke - Brücken | köprü
VH car | n Auto Autos Autos | araba
VH bus buses | m Bus Busses Busse | otobüs
VH train | m Zug Zuges Züge | tren
V bicycle | n Fahrrad Fahrrads Fahrräder | bisiklet
V ship | n Schiff Schiffes Schiffe | gemi
V plane | n Flugzeug Flugzeugs Flugzeuge | uçak uçağ
ER apple | m Apfel Apfels Äpfel | elma
EK egg | n Ei Eies Eier | yumurta
ER cake | m Kuchen Kuchens Kuchen | kek
ER pear | f Birne - Birnen | armut armud
ER banana | f Banane - Bananen | muz
E tomato tomatoes | f Tomate - Tomaten | domates
EK potato potatoes | f Kartoffel - Kartoffeln | patates
EK carrot | f Karotte - Karotten | havuç havuc
E bread - | n Brot Brotes Brote | ekmek ekmeğ
E cheese - | m Käse Käses Käse | peynir
EK soup - | f Suppe - Suppen | çorba
EK rice - | m Reis Reises Reis | pilav
D water - | n Wasser Wassers Wasser | su suy
D milk - | f Milch - Milch | süt
DK coffee - | m Kaffee Kaffees Kaffees | kahve
D tea - | m Tee Tees Tees | çay
D wine - | m Wein Weines Weine | şarap şarab
LJ garden | m Garten Gartens Gärten in | bahçe
LBH house | n Haus Hauses Häuser zu | ev
LBH school | f Schule - Schulen zu | okul
L park | m Park Parks Parks in | park
LJ kitchen | f Küche - Küchen in | mutfak mutfağ
L city cities | f Stadt - Städte in | şehir şehr
L village | n Dorf Dorfes Dörfer in | köy
L forest | m Wald Waldes Wälder in | orman
LBH hospital | n Krankenhaus Krankenhauses Krankenhäuser in | hastane
LBH hotel | n Hotel Hotels Hotels in | otel
LH restaurant | n Restaurant Restaurants Restaurants in | restoran
LBH museum | n Museum Museums Museen in | müze
LBH library libraries | f Bibliothek - Bibliotheken in | kütüphane
LBH church churches | f Kirche - Kirchen in | kilise
LBH castle | n Schloss Schlosses Schlösser zu | kale
LJ room | n Zimmer Zimmers Zimmer in | oda
LJ office | n Büro Büros Büros in | ofis
LH station | m Bahnhof Bahnhofs Bahnhöfe zu | istasyon
LBH theatre | n Theater Theaters Theater in | tiyatro
Z concert | n Konzert Konzerts Konzerte | konser
Z lecture | f Vorlesung - Vorlesungen | ders
Z wedding | f Hochzeit - Hochzeiten | düğün
Z exam | f Prüfung - Prüfungen | sınav
ZW game | n Spiel Spiels Spiele | oyun
Z journey | f Reise - Reisen | yolculuk yolculuğ
Z meal | n Essen Essens Essen | yemek yemeğ
Z war | m Krieg Krieges Kriege | savaş
"""

ADJECTIVES = """
PA old older | alt älter | yaşlı
PA young younger | jung jünger | genç
Pt happy happier | glücklich glücklicher | mutlu
Pt sad sadder | traurig trauriger | üzgün
PAt tired more_tired | müde müd müder | yorgun
PAt hungry hungrier | hungrig hungriger | aç
PA clever cleverer | klug klüger | akıllı
P polite more_polite | höflich höflicher | kibar
PA strong stronger | stark stärker | güçlü
PAt ill - | krank - | hasta
P famous more_famous | berühmt berühmter | ünlü
P brave braver | mutig mutiger | cesur
PAt lazy lazier | faul fauler | tembel
P rich richer | reich reicher | zengin
P poor poorer | arm ärmer | fakir
PA curious more_curious | neugierig neugieriger | meraklı
Pt angry angrier | wütend wütender | kızgın
A dangerous more_dangerous | gefährlich gefährlicher | tehlikeli
A wild - | wild - | vahşi
TCMXWFVOBLQ new newer | neu neuer | yeni
ATMFVOEBLUQc big bigger | groß größer | büyük
ATMFVOEBLUQc small smaller | klein kleiner | küçük
TCXWFVBLU beautiful more_beautiful | schön schöner | güzel
TCMFVDE expensive more_expensive | teuer teur teurer | pahalı
TCMFVDE cheap cheaper | billig billiger | ucuz
TMFO heavy heavier | schwer schwerer | ağır
CTVO red - | rot - | kırmızı
CTVO blue - | blau - | mavi
CTVOU green - | grün - | yeşil
ACTVO white - | weiß - | beyaz
ACTVO black - | schwarz - | siyah
XWZ long longer | lang länger | uzun
XWZ short shorter | kurz kürzer | kısa
XWZ interesting more_interesting | interessant interessanter | ilginç
XWZ boring more_boring | langweilig langweiliger | sıkıcı
XZ important more_important | wichtig wichtiger | önemli
CTVt dirty dirtier | schmutzig schmutziger | kirli
CTLt clean cleaner | sauber sauberer | temiz
DKt warm warmer | warm wärmer | sıcak
Dt cold colder | kalt kälter | soğuk
E fresh fresher | frisch frischer | taze
R sweet sweeter | süß süßer | tatlı
Lt empty emptier | leer leerer | boş
LB modern more_modern | modern moderner | modern
MTXWZ strange stranger | seltsam seltsamer | tuhaf
"""

# Adjectives that exclude each other, so that nothing is big and small, or red and green.
OPPOSITES = """
old young new
happy sad angry
rich poor
big small
expensive cheap
red blue green white black
long short
interesting boring
dirty clean
warm cold
tired lazy
"""

VERBS = """
sleep slept slept | schlafen schläft schlief geschlafen h | uyu | plain:PA | c
laugh laughed laughed | lachen lacht lachte gelacht h | gül | plain:P |
dance danced danced | tanzen tanzt tanzte getanzt h | dans et | plain:P |
swim swam swum | schwimmen schwimmt schwamm geschwommen s | yüz | plain:PA |
sing sang sung | singen singt sang gesungen h | şarkı söyle | plain:P |
run ran run | laufen läuft lief gelaufen s | koş | plain:PA go:PA |
cry cried cried | weinen weint weinte geweint h | ağla | plain:P |
smile smiled smiled | lächeln lächelt lächelte gelächelt h | gülümse | plain:P | c
work worked worked | arbeiten arbeitet arbeitete gearbeitet h | çalış | plain:P |
wait waited waited | warten wartet wartete gewartet h | bekle | plain:PA | c
shout shouted shouted | schreien schreit schrie geschrien h | bağır | plain:P |
sit sat sat | sitzen sitzt saß gesessen h | otur | plain:PA | c
stay stayed stayed | bleiben bleibt blieb geblieben s | kal | plain:PA | c
wake woke woken +up | auf-wachen wacht wachte gewacht s | uyan | plain:PA |
stand stood stood +up | auf-stehen steht stand gestanden s | ayağa kalk | plain:PA |
come came come +back | zurück-kommen kommt kam gekommen s | geri gel | plain:PA |
fall fell fallen +asleep | ein-schlafen schläft schlief geschlafen s | uyuyakal | plain:PA | c
go went gone +out | aus-gehen geht ging gegangen s | dışarı çık | plain:P |
arrive arrived arrived | an-kommen kommt kam gekommen s | gel | plain:PV |
stop stopped stopped | an-halten hält hielt gehalten h | dur | plain:PV |
disappear disappeared disappeared | verschwinden verschwindet verschwand verschwunden s | kaybol | plain:PATCX |
burn burned burned | brennen brennt brannte gebrannt h | yan | plain:B |
go went gone | gehen geht ging gegangen s | git | go:PA |
come came come | kommen kommt kam gekommen s | gel | go:PA |
return returned returned | zurück-kehren kehrt kehrte gekehrt s | dön | go:PA |
fly flew flown | fliegen fliegt flog geflogen s | uç | go:P:Y |
travel travelled travelled | reisen reist reiste gereist s | seyahat et | plain:P go:P |
see saw seen | sehen sieht sah gesehen h | gör | object:PA:PATCMFVLB that:P | sp
hear heard heard | hören hört hörte gehört h | duy | object:PA:PAV that:P | s
find found found | finden findet fand gefunden h | bul | object:PA:PATCXE | p
look looked looked +for | suchen sucht suchte gesucht h | ara | object:PA:PATCX |
buy bought bought | kaufen kauft kaufte gekauft h | satın al | object:P:TCMXFVED | p
sell sold sold | verkaufen verkauft verkaufte verkauft h | sat | object:P:TCMFVEDB | p
eat ate eaten | essen isst aß gegessen h | ye | object:PA:E | p
drink drank drunk | trinken trinkt trank getrunken h | iç | object:PA:D | p
cook cooked cooked | kochen kocht kochte gekocht h | pişir | object:P:K | p
write wrote written | schreiben schreibt schrieb geschrieben h | yaz | object:P:X give:P:X | p
open opened opened | auf-machen macht machte gemacht h | aç | object:P:O | p
close closed closed | zu-machen macht machte gemacht h | kapat | object:P:O | p
turn turned turned +on | ein-schalten schaltet schaltete geschaltet h | aç | object:P:M | p
turn turned turned +off | aus-schalten schaltet schaltete geschaltet h | kapat | object:P:M | p
call called called | an-rufen ruft rief gerufen h | ara | object:P:P | S
visit visited visited | besuchen besucht besuchte besucht h | ziyaret et | object:P:PL | Sp
invite invited invited | ein-laden lädt lud geladen h | davet et | object:P:P | Sp
carry carried carried | tragen trägt trug getragen h | taşı | object:P:TCMF | p
bring brought brought | mit-bringen bringt brachte gebracht h | getir | object:P:TCXED give:P:TCXED | p
wash washed washed | waschen wäscht wusch gewaschen h | yıka | object:P:CVA | p
paint painted painted | streichen streicht strich gestrichen h | boya | object:P:BQF | p
build built built | bauen baut baute gebaut h | inşa et | object:P:BQ | p
love loved loved | lieben liebt liebte geliebt h | sev | object:P:PAL | skS
like liked liked | mögen mag mochte gemocht h | beğen | object:P:PACXWL | skS
meet met met | treffen trifft traf getroffen h | buluş =ins | object:P:P |
understand understood understood | verstehen versteht verstand verstanden h | anla | object:P:PX that:P | sS
lose lost lost | verlieren verliert verlor verloren h | kaybet | object:P:TC | p
forget forgot forgotten | vergessen vergisst vergaß vergessen h | unut | object:P:PTCX that:P to:P | sSp
watch watched watched | an-schauen schaut schaute geschaut h | izle | object:PA:WA |
repair repaired repaired | reparieren repariert reparierte repariert h | tamir et | object:P:MVO | p
steal stole stolen | stehlen stiehlt stahl gestohlen h | çal | object:P:TCVM | p
throw threw thrown +away | weg-werfen wirft warf geworfen h | at | object:P:TC | p
hide hid hidden | verstecken versteckt versteckte versteckt h | sakla | object:P:TX | p
draw drew drawn | zeichnen zeichnet zeichnete gezeichnet h | çiz | object:P:PAFVU | p
choose chose chosen | wählen wählt wählte gewählt h | seç | object:P:TCXV | p
feed fed fed | füttern füttert fütterte gefüttert h | besle | object:P:A | p
catch caught caught | fangen fängt fing gefangen h | yakala | object:PA:A | p
greet greeted greeted | grüßen grüßt grüßte gegrüßt h | selamla | object:P:P | S
kiss kissed kissed | küssen küsst küsste geküsst h | öp | object:P:P | S
help helped helped | helfen hilft half geholfen h dat | yardım et =dat | object:P:PA |
thank thanked thanked | danken dankt dankte gedankt h dat | teşekkür et =dat | object:P:P |
answer answered answered | antworten antwortet antwortete geantwortet h dat | cevap ver =dat | object:P:P |
follow followed followed | folgen folgt folgte gefolgt s dat | takip et | object:PA:PAV | S
trust trusted trusted | vertrauen vertraut vertraute vertraut h dat | güven =dat | object:P:P | sk
listen listened listened ~to | zu-hören hört hörte gehört h dat | dinle | object:P:P | S
wait waited waited ~for | warten wartet wartete gewartet h auf acc | bekle | object:P:PV | c
think thought thought ~of | denken denkt dachte gedacht h an acc | düşün | object:P:PAL | S
laugh laughed laughed ~at | lachen lacht lachte gelacht h über acc | gül =dat | object:P:PAX |
talk talked talked ~about | sprechen spricht sprach gesprochen h über acc | konuş =about | object:P:PAXWZ |
talk talked talked ~to | sprechen spricht sprach gesprochen h mit dat | konuş =ins | object:P:P |
speak spoke spoken | sprechen spricht sprach gesprochen h | konuş | object:P:G |
learn learned learned | lernen lernt lernte gelernt h | öğren | object:P:G |
give gave given | geben gibt gab gegeben h | ver | give:P:TXED | p
show showed shown | zeigen zeigt zeigte gezeigt h | göster | give:P:TCXMVW | p
send sent sent | schicken schickt schickte geschickt h | gönder | give:P:TX | p
tell told told | erzählen erzählt erzählte erzählt h | anlat | give:P:N | p
lend lent lent | leihen leiht lieh geliehen h | ödünç ver | give:P:TCXV |
know knew known | wissen weiß wusste gewusst h | bil | that:P whether:P | sk
believe believed believed | glauben glaubt glaubte geglaubt h | inan =dat | that:P | sk
think thought thought | denken denkt dachte gedacht h | düşün | that:P | s
say said said | sagen sagt sagte gesagt h | söyle | that:P | s
hope hoped hoped | hoffen hofft hoffte gehofft h | um | that:P to:P | sk
explain explained explained | erklären erklärt erklärte erklärt h | açıkla | that:P | s
ask asked asked | fragen fragt fragte gefragt h | sor | whether:P | s
try tried tried | versuchen versucht versuchte versucht h | çalış =dat | to:P |
begin began begun | beginnen beginnt begann begonnen h | başla =dat | to:P |
decide decided decided | beschließen beschließt beschloss beschlossen h | karar ver =dat | to:P |
promise promised promised | versprechen verspricht versprach versprochen h | söz ver =dat | to:P |
"""

NAMES = "Anna Maria Peter Martin Thomas Emma Lena Laura Daniel Julia Oskar Nina"

# Codes of CLDR, which names these in every language.
LANGUAGES = "de fr it es ja el en ru tr"
TERRITORIES = "DE FR IT ES JP PL GR NO CA"
