"""A small grammar of what people say in the synthetic conversations.

Each symbol has alternatives. Inside an alternative, `{symbol}` is replaced by one of
that symbol's alternatives. A topic's own symbols come before the shared ones.
"""

Grammar = dict[str, list[str]]

BACKCHANNELS = [
    "uh-huh",
    "yeah",
    "right",
    "oh yeah",
    "okay",
    "sure",
    "oh really",
    "hm",
    "oh i see",
    "that's right",
    "yeah i know",
    "oh wow",
    "that's nice",
    "that's true",
]
HESITATIONS = ["uh", "um"]
OPENERS = ["well", "so", "and", "but", "you know", "i mean", "yeah", "oh", "no"]

# Each partial word as MS98 writes it, with letters that make espeak-ng say the part.
PARTIALS = {
    "th[at]-": "thuh",
    "w[e]-": "wuh",
    "b[ut]-": "buh",
    "prob[ably]-": "prob",
    "re[ally]-": "ree",
    "some[thing]-": "some",
    "s[o]-": "suh",
    "be[cause]-": "bee",
}

# These are spoken letter by letter. NASA is in capitals, but a word, and so is `us`.
ACRONYMS = {
    word: " ".join(word.lower())
    for word in ("IBM", "MTV", "PC", "TI", "TV", "US", "VCR")
}

SHARED: Grammar = {
    "who": [
        "my wife",
        "my husband",
        "my son",
        "my daughter",
        "my brother",
        "my sister",
        "my mother",
        "my dad",
        "my friend",
        "my neighbor",
    ],
    "day": [
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
    ],
    "when": [
        "last weekend",
        "last year",
        "last night",
        "a while ago",
        "last month",
        "on {day}",
        "two years ago",
        "this morning",
        "yesterday",
    ],
    "often": [
        "every day",
        "all the time",
        "once a week",
        "on weekends",
        "every year",
        "in the summer",
        "in the winter",
        "once in a while",
        "on {day}",
    ],
    "number": [
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "ten",
        "twelve",
        "twenty",
        "thirty",
    ],
    "good": ["good", "great", "nice", "fun", "wonderful", "interesting"],
    "bad": ["bad", "terrible", "awful", "hard", "expensive", "boring"],
    "how": ["pretty", "really", "very", "so", "kind of", "too"],
    "company": ["IBM", "TI", "the phone company", "NASA", "a bank"],
    "place": [
        "texas",
        "dallas",
        "california",
        "colorado",
        "florida",
        "boston",
        "chicago",
        "new york",
        "virginia",
        "georgia",
    ],
    "think": ["i think", "i guess", "i know", "it seems like", "i would say"],
    "answer": [
        "yes we do",
        "no not really",
        "not very much",
        "a little bit",
        "oh i love it",
        "i used to",
        "that's a good question",
        "i don't know",
    ],
    "agree": [
        "{think} you're right",
        "that sounds {how} {good}",
        "that must be {how} {bad}",
        "i never thought about that",
        "we had the same problem {when}",
        "{who} says the same thing",
        "it's the same here in {place}",
    ],
    "hello": [
        "hi this is {name}",
        "hello my name is {name}",
        "hi i'm {name} from {place}",
        "hello this is {name} in {place} how are you",
        "hi {name} here i'm calling from {place}",
    ],
    "topic_line": [
        "the topic today is {topic}",
        "they want us to talk about {topic}",
        "so we are going to talk about {topic}",
        "what do you think about {topic}",
    ],
    "bye": [
        "well it was nice talking to you",
        "i enjoyed talking with you",
        "okay have a good evening",
        "well thank you for the call",
        "i have to go now take care",
        "all right bye bye",
    ],
}

TOPICS: dict[str, Grammar] = {
    "the weather": {
        "weather": ["rain", "snow", "wind", "sunshine", "fog"],
        "warm": ["hot", "cold", "warm", "wet", "dry", "cool"],
        "ask": [
            "how is the weather in {place}",
            "do you get much {weather} up there",
            "is it {how} {warm} where you live",
        ],
        "tell": [
            "it was {how} {warm} here {when}",
            "we had {number} inches of {weather} {when}",
            "it gets {how} {warm} in {place}",
            "i like the {weather} but {who} doesn't",
            "the {weather} was {how} {bad} {when}",
            "it's about {number} degrees and {how} {warm}",
        ],
    },
    "family": {
        "kid": ["baby", "boy", "girl", "teenager", "little one"],
        "ask": [
            "do you have any children",
            "how old is your {kid}",
            "does your family live in {place}",
        ],
        "tell": [
            "we have {number} children and a {kid}",
            "{who} lives in {place} with the {kid}",
            "our {kid} is {number} years old",
            "{who} got married {when}",
            "we see {who} {often}",
            "{who} and i moved to {place} {when}",
        ],
    },
    "pets": {
        "pet": ["dog", "cat", "puppy", "bird", "horse", "rabbit", "fish"],
        "color": ["black", "white", "brown", "gray", "yellow"],
        "ask": [
            "do you have a {pet}",
            "what kind of {pet} is it",
            "does the {pet} sleep in the house",
        ],
        "tell": [
            "we have a {color} {pet} and a {pet}",
            "our {pet} is {number} years old",
            "{who} takes the {pet} for a walk {often}",
            "the {pet} ate my shoes {when}",
            "a {pet} is {how} {good} for the kids",
            "{who} found a {color} {pet} {when}",
        ],
    },
    "cooking": {
        "food": [
            "chicken",
            "fish",
            "rice",
            "soup",
            "bread",
            "salad",
            "cake",
            "beans",
            "pizza",
            "steak",
            "potatoes",
        ],
        "ask": [
            "do you like to cook {food}",
            "what do you make for dinner",
            "how long do you cook the {food}",
        ],
        "tell": [
            "i make {food} with {food} {often}",
            "{who} cooked some {food} {when}",
            "you put the {food} in the oven for {number} minutes",
            "{food} is {how} {good} with a little butter",
            "we go out and eat {food} {often}",
            "the {food} was {how} {bad} {when}",
        ],
    },
    "cars": {
        "car": ["car", "truck", "van", "ford", "honda", "toyota", "engine"],
        "ask": [
            "what kind of {car} do you drive",
            "is your {car} old",
            "would you buy a new {car}",
        ],
        "tell": [
            "i bought a used {car} {when}",
            "the {car} has {number} thousand miles on it",
            "{who} drives a {car} to work {often}",
            "the {car} broke down {when}",
            "a new {car} is {how} {bad} these days",
            "{who} can fix the {car} in {number} hours",
        ],
    },
    "sports": {
        "sport": ["football", "baseball", "basketball", "tennis", "golf", "hockey"],
        "ask": [
            "do you play any {sport}",
            "did you watch the {sport} game {when}",
            "who is your favorite {sport} team",
        ],
        "tell": [
            "i watch {sport} on TV {often}",
            "{who} played {sport} in college",
            "the team from {place} won {number} games",
            "we lost the {sport} game {when}",
            "{sport} is {how} {good} to play",
            "{who} and i play {sport} {often}",
        ],
    },
    "work": {
        "job": ["teacher", "nurse", "lawyer", "programmer", "engineer", "farmer"],
        "ask": [
            "what kind of work do you do",
            "do you like your job",
            "how far do you drive to work",
        ],
        "tell": [
            "i work as a {job} in {place}",
            "{who} is a {job} and works {number} hours a day",
            "my boss is {how} {good} to us",
            "the pay was {how} {bad} {when}",
            "i started a new job {when}",
            "we work from home {often}",
            "{who} used to work for {company} in {place}",
            "they gave everybody a PC at {company} {when}",
        ],
    },
    "travel": {
        "trip": ["beach", "mountains", "lake", "city", "desert", "park"],
        "ask": [
            "where did you go on vacation",
            "have you been to {place}",
            "do you like the {trip}",
        ],
        "tell": [
            "we drove to the {trip} {when}",
            "{who} flew to {place} {when}",
            "we stayed in a tent near the {trip} for {number} days",
            "the {trip} in {place} is {how} {good}",
            "we go camping by the {trip} {often}",
            "the hotel was {how} {bad} and far from the {trip}",
            "{who} has never been outside of the US",
        ],
    },
    "movies": {
        "movie": ["movie", "comedy", "western", "cartoon", "show", "mystery"],
        "ask": [
            "have you seen a {good} {movie} lately",
            "what {movie} do you like best",
            "do you go to the theater {often}",
        ],
        "tell": [
            "i saw a {movie} with {who} {when}",
            "the {movie} was {how} {good}",
            "the {movie} was {how} {bad} and {number} hours long",
            "{who} rents a {movie} {often}",
            "it's a {movie} about a {job} from {place}",
            "we fell asleep in the {movie} {when}",
            "{who} got us a VCR and a new TV {when}",
        ],
        "job": ["doctor", "soldier", "teacher", "lawyer", "farmer"],
    },
    "music": {
        "music": ["jazz", "rock", "country", "classical", "folk"],
        "instrument": ["piano", "guitar", "drums", "violin", "trumpet"],
        "ask": [
            "what kind of music do you listen to",
            "do you play the {instrument}",
            "did you ever go to a {music} concert",
        ],
        "tell": [
            "i listen to {music} music {often}",
            "{who} plays the {instrument} in a {music} band",
            "i took {instrument} lessons for {number} years",
            "the concert in {place} was {how} {good}",
            "{who} bought a {instrument} {when}",
            "{think} {music} music is {how} {bad}",
            "the kids watch MTV {often}",
        ],
    },
    "the garden": {
        "plant": ["tomatoes", "roses", "corn", "peppers", "flowers", "trees"],
        "ask": [
            "do you grow {plant}",
            "how big is your yard",
            "who mows the lawn at your house",
        ],
        "tell": [
            "we planted {plant} and {plant} {when}",
            "{who} waters the {plant} {often}",
            "i picked {number} baskets of {plant} {when}",
            "the {plant} are {how} {good} this year",
            "the bugs ate our {plant} {when}",
            "we painted the house {when} and cut the {plant}",
        ],
    },
}
