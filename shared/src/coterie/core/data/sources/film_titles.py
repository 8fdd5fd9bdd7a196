"""Words for the invented film titles of the generated sample."""

from __future__ import annotations

# Per genre: ten adjectives and ten nouns; no word occurs in two genres, so titles are distinct.
_WORDS = {
    "Action": (
        "Burning Iron Reckless Armoured Furious Loaded Steel Relentless Thundering Renegade",
        "Convoy Bounty Vanguard Blockade Trigger Commando Pursuit Barricade Outpost Warhead",
    ),
    "Animation": (
        "Tiny Painted Clockwork Marmalade Paper Feathered Cardboard Sleepy Wooden Buttoned",
        "Dragon Hedgehog Lighthouse Balloon Penguin Toymaker Acorn Windmill Tortoise Teapot",
    ),
    "Comedy": (
        "Awkward Borrowed Accidental Ridiculous Overbooked Clumsy Cheerful Spare Second-Hand Noisy",
        "Landlord Bridesmaid Uncle Plumber Reunion Roommate Barbecue Pensioner Caterer Honeymoon",
    ),
    "Documentary": (
        "Ordinary Measured Unwritten Vanishing Common Northern Patient Recorded Mapped Salted",
        "Harvest Glacier Fishery Archive Orchard Railway Migration Quarry Beekeeper Delta",
    ),
    "Drama": (
        "Quiet Inherited Unspoken Faded Distant Broken Winter Forgotten Divided Pale",
        "Daughter Verdict Piano Kitchen Promise Homecoming Brother Widow Confession Schoolhouse",
    ),
    "Horror": (
        "Hollow Crimson Whispering Buried Rotting Sleepless Starving Nameless Moonless Cursed",
        "Cellar Mirror Nursery Lantern Marsh Scarecrow Attic Chapel Cradle Undertaker",
    ),
    "Romance": (
        "Tender Moonlit Summer Secret Velvet Parisian Golden Slow Reluctant Longing",
        "Waltz Letter Embrace Bookshop Balcony Serenade Vineyard Valentine Umbrella Rendezvous",
    ),
    "Sci-Fi": (
        "Orbital Synthetic Quantum Stellar Frozen Parallel Automatic Magnetic Lunar Infinite",
        "Colony Signal Horizon Android Reactor Paradox Satellite Voyager Eclipse Nebula",
    ),
    "Thriller": (
        "Silent Double Missing Cold Anonymous Fatal Blind Perfect Locked Midnight",
        "Witness Alibi Informant Ransom Passenger Cipher Surgeon Hostage Evidence Stairwell",
    ),
}

GENRES = tuple(_WORDS)
TITLES_PER_GENRE = 100
# Plain forms occur twice, or a list of titles would sound monotonous.
_PATTERNS = (
    "The {} {}",
    "{} {}",
    "A Night for the {} {}",
    "The Last {} {}",
    "Return of the {} {}",
    "The {} {}",
    "{} {}",
    "{} {}",
)


def film_title(genre: int, number: int, pattern: int, year: int) -> str:
    """Compose a title.

    Args:
        genre: index into `GENRES`.
        number: which of the genre's `TITLES_PER_GENRE` pairs of words.
        pattern: any number, chooses how the words are joined.
        year: of the film.

    Example:
        >>> film_title(5, 0, 0, 2014)
        'The Hollow Cellar (2014)'
    """
    adjectives, nouns = (words.split() for words in _WORDS[GENRES[genre]])
    form = _PATTERNS[pattern % len(_PATTERNS)]
    return f"{form.format(adjectives[number // 10], nouns[number % 10])} ({year})"
