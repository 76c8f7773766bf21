"""The free wording of solutions: for each kind of place and each voice four phrases that say the same.

A question names the voice that it wants to hear, and both models of the pair know all voices. Labels and calibration
use the voices SEEN, evaluation UNSEEN: a judge is then shown on wording that it knows nothing about.
In each row the target likes the first phrase best and the last one least; the drafter's favourite is another one.
"""

from __future__ import annotations

from zlib import crc32

from .problem import Place, wording

SEEN = ("teacher", "clerk", "friend")
UNSEEN = ("sailor",)
VOICES = (*SEEN, *UNSEEN)
WORDING = {"seen": SEEN, "unseen": UNSEEN, "all": VOICES}

PHRASES: dict[str, dict[str, tuple[str, ...]]] = {
    "open": {
        "teacher": ("First, ", "To start, ", "Let us see: ", "As a first step, "),
        "clerk": ("Item one: ", "Opening entry: ", "For the record, ", "In the books, "),
        "friend": ("Okay, ", "Well, ", "Right, ", "Look, "),
        "sailor": ("Starting off, ", "At the outset, ", "Before all else, ", "Casting off, "),
    },
    "next": {
        "teacher": ("Then ", "After that, ", "Next, ", "From there, "),
        "clerk": ("Further, ", "In addition, ", "Below that, ", "Also, "),
        "friend": ("And now ", "Going on, ", "Now ", "With that done, "),
        "sailor": ("Ahead of that, ", "Onward, ", "Later, ", "Sailing on, "),
    },
    "last": {
        "teacher": ("So in the end ", "Therefore ", "All in all, ", "This means that "),
        "clerk": ("In total ", "Hence ", "To close, ", "Finally, "),
        "friend": ("That way ", "Which means ", "And so ", "Put together, "),
        "sailor": ("Taken together, ", "Ashore, ", "At last ", "Summed up, "),
    },
    "tail": {
        "teacher": (" so far", " at this point", " for now", " by then"),
        "clerk": (" as noted", " on paper", " in this entry", " to date"),
        "friend": (" here", " you see", " all right", " okay"),
        "sailor": (" aboard", " on deck", " this far", " under way"),
    },
    "plus": {
        "teacher": ("{a} plus {b} is ", "adding {b} to {a} gives ", "{b} on top of {a} makes ",
                    "the sum of {a} and {b} is "),
        "clerk": ("{a} + {b} = ", "entering {b} beside {a} yields ", "{b} + {a} = ", "total of {a} and {b}: "),
        "friend": ("{a} and {b} make ", "throw {b} onto {a} and get ", "with {b} more than {a} we get ",
                   "if you add {b} to {a} you have "),
        "sailor": ("{a} raised by {b} is ", "loading {b} on {a} leaves us ", "{b} joins {a} to make ",
                   "up from {a} by {b} is "),
    },
    "minus": {
        "teacher": ("{a} minus {b} is ", "taking {b} from {a} leaves ", "{b} less than {a} is ",
                    "the difference of {a} and {b} is "),
        "clerk": ("{a} - {b} = ", "deducting {b} off {a} yields ", "less {b}, {a} becomes ",
                  "balance of {a} without {b}: "),
        "friend": ("{a} without {b} is ", "drop {b} off {a} and get ", "lose {b} out of {a} and keep ",
                   "with {b} gone {a} turns into "),
        "sailor": ("{a} lowered by {b} is ", "unloading {b} off {a} leaves us ", "{b} gone leaves {a} at ",
                   "down from {a} by {b} is "),
    },
    "times": {
        "teacher": ("{a} times {b} is ", "multiplying {b} by {a} gives ", "{b} taken {a} times is ",
                    "the product of {a} and {b} is "),
        "clerk": ("{a} x {b} = ", "charging {b} for each of {a} yields ", "{b} x {a} = ", "extension of {a} by {b}: "),
        "friend": ("{a} lots of {b} make ", "count {b} over {a} times and get ", "with {b} each {a} make ",
                   "if you take {b} {a} times you have "),
        "sailor": ("{a} loads of {b} are ", "stacking {b} in {a} rows leaves us ", "{b} hauled {a} times is ",
                   "on {a} trips {b} each makes "),
    },
    "closing": {
        "teacher": ("the result is ", "we find ", "it is ", "what we get is "),
        "clerk": ("the amount is ", "this closes at ", "we book ", "balance: "),
        "friend": ("you get ", "it comes to ", "that makes ", "there we have "),
        "sailor": ("we land at ", "the log says ", "our haul is ", "harbour count: "),
    },
    "topic": {
        "teacher": ("for the {what}, ", "as for the {what}, ", "the {what}: ", "looking at the {what}, "),
        "clerk": ("item {what}, ", "under {what}, ", "line {what}: ", "charge on {what}, "),
        "friend": ("those {what}, ", "with the {what}, ", "all {what}: ", "your {what}, "),
        "sailor": ("crate of {what}, ", "down among the {what}, ", "our {what}, ", "stowed {what}: "),
    },
    "fact": {
        "teacher": ("one of the {large} is {per} {small}", "there are {per} {small} in each of the {large}",
                    "each of the {large} holds {per} {small}", "{per} {small} make one of the {large}"),
        "clerk": ("by the table {large} are {per} {small} each", "rate: {per} {small} for one of the {large}",
                  "{large} count {per} {small} each", "unit {large} equals {per} {small}"),
        "friend": ("you know {large} are {per} {small} each", "{per} {small} fit in one of the {large}",
                   "all {large} have {per} {small}", "think of {per} {small} for each of the {large}"),
        "sailor": ("on board {large} are {per} {small} each", "we reckon {per} {small} to one of the {large}",
                   "{large} run to {per} {small} each", "charts give {per} {small} to one of the {large}"),
    },
    "sort": {
        "teacher": ("in order the list is ", "sorted, they read ", "put in line they are ", "from low to high: "),
        "clerk": ("ranked: ", "filed by size: ", "the register reads ", "ascending: "),
        "friend": ("lined up you have ", "smallest up front: ", "they go ", "tidied up it is "),
        "sailor": ("by height they stand ", "in file: ", "from keel to mast: ", "ranged along the rail: "),
    },
    "drop": {
        "teacher": ("without the smallest it is ", "dropping the smallest leaves ", "the lowest goes, so we keep ",
                    "taking the first away gives "),
        "clerk": ("struck out the least: ", "after removal: ", "remaining: ", "excluding the minimum: "),
        "friend": ("kick the smallest and keep ", "minus the tiny one you have ", "the little one goes, leaving ",
                   "toss the first for "),
        "sailor": ("the least goes overboard, leaving ", "casting the lowest off: ", "still afloat: ",
                   "with the smallest sunk we hold "),
    },
    "left": {
        "teacher": ("after the {day}, {month} still has ", "behind the {day} {month} keeps ",
                    "{month} past the {day} has ", "counting from the {day}, {month} has left "),
        "clerk": ("{month} {day}, days open: ", "calendar of {month} from {day}: ", "from {day} on {month} lists ",
                  "open in {month} past {day}: "),
        "friend": ("once the {day} is over {month} has ", "you have in {month} after the {day} ",
                   "so {month} past the {day} gives ", "what {month} has beyond the {day}: "),
        "sailor": ("past the {day} {month} runs ", "the log of {month} beyond {day} shows ",
                   "astern of the {day} {month} has ", "with {month} {day} behind us we have "),
    },
}  # fmt: skip


def favourite(kind: str, voice: str) -> int:
    """Which phrase of a row the drafter likes best: never the target's first, and most often its last."""
    return (1, 2, 3, 3)[crc32(f"{kind} {voice}".encode()) % 4]


def say(voice: str, kind: str, **values: object) -> Place:
    """A free place of a kind, in a voice."""
    return wording([phrase.format(**values) for phrase in PHRASES[kind][voice]], favourite(kind, voice))
