"""Invents the texts of printed lines from words, names, numbers, dates and times."""

import random
import string

ALPHABET = string.ascii_letters + string.digits + " .,;:!?'\"()-/%&"
"""Every character that a text may have."""

_WORD_LINES = """
the of and to in is you that it he was for on are as with his they at be this have
from or one had by word but not what all were we when your can said there use an each
which she do how their if will up other about out many then them these so some her
would make like him into time has look two more write go see number no way could
people my than first water been call who oil its now find long down day did get come
made may part over new sound take only little work know place year live me back give
most very after thing our just name good sentence man think say great where help
through much before line right too mean old any same tell boy follow came want show
also around form three small set put end does another well large must big even such
because turn here why ask went men read need land different home us move try kind hand
picture again change off play spell air away animal house point page letter mother
answer found study still learn should world high every near add food between own below
country plant last school father keep tree never start city earth eye light thought
head under story saw left late run while press close night real life few north open
seem together next white children begin got walk example ease paper group always music
those both mark often book until mile river car feet care second enough plain girl
usual young ready above ever red list though feel talk bird soon body dog family
direct leave song measure door product black short class wind question happen complete
ship area half rock order fire south problem piece told knew pass since top whole king
space heard best hour better true during hundred five remember step early hold west
ground interest reach fast verb sing listen six table travel less morning ten simple
several vowel toward war lay against pattern slow center love person money serve
appear road map rain rule govern pull cold notice voice unit power town fine certain
fly fall lead cry dark machine note wait plan figure star box noun field rest correct
able pound done beauty drive stood contain front teach week final gave green quick
develop ocean warm free minute strong special mind behind clear tail produce fact
street inch multiply nothing course stay wheel full force blue object decide surface
deep moon island foot system busy test record boat common gold possible plane dry
wonder laugh thousand ago ran check game shape equate hot miss brought heat snow tire
bring yes distant fill east paint language among jazz quiz vex zebra fox lazy quartz
oxygen fizz buzz maximum exact equal jacket project major judge enjoy objective unique
liquid quiet quarter require
"""
_NAME_LINES = """
Adams Baker Carter Davis Evans Fisher Garcia Harris Irving Jones Kelly Lopez Miller
Nelson Owens Parker Quinn Roberts Smith Turner Underwood Vargas Wilson Xavier Young
Zimmer Boston Chicago Dublin Geneva Havana Istanbul Jakarta Kyoto London Madrid Naples
Oslo Paris Quito Rome Sydney Tokyo Utrecht Vienna Warsaw York Zurich
"""
_MONTH_LINES = """
January February March April May June July August September October November December
"""
_WORDS = _WORD_LINES.split()
_NAMES = _NAME_LINES.split()
_MONTHS = _MONTH_LINES.split()
_SHORT = ("Mr.", "Mrs.", "Dr.", "No.", "St.", "Ltd.", "Inc.", "etc.", "Vol.", "p.")
_POSSESSIVES = ("'s", "'ll", "'d", "n't", "'re")


def random_text(rng: random.Random, longest: int = 40) -> str:
    """Return the text of a line, of at least one and at most `longest` characters.

    >>> random_text(random.Random(5))
    'Rule rest? As: "through"'
    """
    limit = rng.randint(min(12, longest), longest)
    text = ""
    start = rng.random() < 0.4  # the line begins a sentence
    while True:
        piece = _piece(rng)
        if start:
            piece = piece[0].upper() + piece[1:]
        start = piece[-1] in ".!?"
        longer = f"{text} {piece}".lstrip()
        if len(longer) > limit:
            return text or longer[:limit].rstrip()
        text = longer


def _piece(rng: random.Random) -> str:
    """Return a word or a figure, with the punctuation that goes with it."""
    kind = rng.random()
    if kind < 0.16:
        return _figure(rng) + rng.choice(("", "", ",", "."))
    if kind < 0.30:
        return _capitalized(rng) + rng.choice(("", "", ",", ".", ";"))
    word = rng.choice(_WORDS)
    if kind < 0.62:
        return word
    if kind < 0.68:
        return f"{word}-{rng.choice(_WORDS)}"
    if kind < 0.73:
        return f"({word})"
    if kind < 0.78:
        return f'"{word}"'
    if kind < 0.82:
        return word + rng.choice(_POSSESSIVES)
    if kind < 0.86:
        return f"{word} & {rng.choice(_WORDS)}"
    return word + rng.choice(",.;:!?")


def _capitalized(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(_NAMES)
    if kind < 0.75:
        return rng.choice(_WORDS).upper()
    if kind < 0.9:
        return f"{rng.choice(_SHORT)} {rng.choice(_NAMES)}"
    return f"{rng.choice(string.ascii_uppercase)}. {rng.choice(_NAMES)}"


def _figure(rng: random.Random) -> str:
    day, month, year = rng.randint(1, 31), rng.randint(1, 12), rng.randint(1800, 2030)
    forms = (
        lambda: str(rng.randint(0, 999)),
        lambda: f"{rng.randint(1000, 999999):,}",
        lambda: f"{rng.randint(0, 99)}.{rng.randint(0, 99):02}",
        lambda: f"{rng.randint(0, 100)}%",
        lambda: f"{day} {_MONTHS[month - 1]} {year}",
        lambda: f"{day:02}/{month:02}/{year}",
        lambda: f"{year}-{month:02}-{day:02}",
        lambda: f"{rng.randint(0, 23)}:{rng.randint(0, 59):02}",
        lambda: f"{rng.randint(200, 999)}-{rng.randint(0, 9999):04}",
        lambda: f"{rng.choice(string.ascii_uppercase)}{rng.randint(1, 999)}",
    )
    return rng.choice(forms)()
