"""What the English words of the phrasebook are: a tag for each, from its lexicon."""

from __future__ import annotations

from functools import cache

from regard.data.synthetic.english import progressive, third_person
from regard.data.synthetic.lexicon import ADJECTIVE_LIST, COUNTRIES, NOUN_LIST, PEOPLE, VERB_LIST

OTHER = "O"


def tags(sentence: str) -> list[str]:
    """One for each word: PERSON and THING (nouns), NAME, ACTION (verbs), QUALITY (adjectives), or O."""
    known = _lexicon()
    return [known.get(word.lower(), OTHER) for word in sentence.split()]


def line(sentence: str) -> str:
    """The sentence and its tags, with a tab between."""
    return f"{sentence}\t{' '.join(tags(sentence))}"


@cache
def _lexicon() -> dict[str, str]:
    """Form to tag; of what is two things, the later one."""
    found: dict[str, str] = {}
    for adjective in ADJECTIVE_LIST:
        found |= dict.fromkeys((adjective.english, adjective.comparative), "QUALITY")
    for verb in VERB_LIST:
        base = verb.english[0]
        found |= dict.fromkeys((*verb.english, third_person(base), progressive(base)), "ACTION")
    for noun in NOUN_LIST:
        found |= dict.fromkeys((noun.singular, noun.plural), "PERSON" if noun.human else "THING")
    found |= dict.fromkeys((name.english for name in (*PEOPLE, *COUNTRIES)), "NAME")
    return {form.lower(): tag for form, tag in found.items() if form}
