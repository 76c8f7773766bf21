"""Every hand-set number of what decides while it runs (`auto`, the budget planner, length rules), with its reason.

What a machine or a text can tell is measured instead; these are the starting points, the speeds at which measurements
are followed, and the limits within which things are tried. Grids of numerical methods stay with their methods.
"""

from __future__ import annotations

# --- before anything is known: replaced within a few rounds -----------------------------------------------------------
ACCEPTANCE_PRIOR = 0.6  # P(a draft is accepted): assumed, six in ten
LOOKUP_CONFIDENCE = (0.3, 0.55, 0.7, 0.9)  # in a lookup's first token: the limits of five classes of records
# P(accepted) in each of them: about the middle of the class; of the last (9 tokens match) 0.92 of 60,286 in 700 chats.
LOOKUP_PRIORS = (0.2, 0.4, 0.6, 0.8, 0.92)
GRAFT_FACTORS = (0.5, 0.8, 1.1)  # on that prior, where a head's tree lacks the first token, holds it, or ranks it first
GRAFT_MOST = 0.95  # no prior is a certainty
LOOKUP_EXTRA = 0.5  # tokens that a look-up finds beyond cheaper ones
TREE_PRIOR = 1.5  # accepted drafts of a tree: ACCEPTANCE_PRIOR along a long path, 0.6 + 0.36 + ..
CHILD_PRIORS = (0.65, 0.12)  # P(accepted) of a node's two top children before they are read
LEVELS_PER_STEP = 12  # levels of drafts in the time of a plain step: a head of one layer beside a target of some dozens
PROMPT_TOKENS_PER_LEVEL = 16  # that a head reads in the time of a level: rows of one tile of a matrix product

# --- how measurements are followed ------------------------------------------------------------------------------------
POSITIONS = 6  # of a draft with acceptance counts of their own; further ones are rare and share the last
FADE_ALL, FADE_REQUEST = 0.998, 0.96  # on acceptance a round: some 500 rounds of all requests, 25 of one (text changes)
FADE_TREES = 0.99  # on accepted drafts of trees: one mean per key, so fewer rounds are enough
WEIGHT_ALL, WEIGHT_REQUEST = 4.0, 8.0  # rounds that the prior is worth, and that all requests are worth against one
CALIBRATION_FADE = 0.97  # on a request's departure from the others
CALIBRATION_WEIGHTS = (
    8.0,
    6.0,
)  # tries for "the drafter is right"; 0.4^-2 for "like the others" (log-odds differ by 0.4)
EMA_RATE = 0.2  # at which times of the host and of lookups are followed: five rounds
TIMING_RATE = 0.1  # the least at which a drafter's times are followed; the n-th round counts 1/n until then
OUTLIER = 2.0  # a time beyond so many times the mean counts as that: hiccups of a machine say nothing
WARM_UP = 3  # rounds of a drafter that may compile or capture something: the fastest of them counts
COST_FADE, COST_WEIGHT = 0.98, 8.0  # of timed passes; those of one size after which their own correction weighs half
HOLD = 8  # passes for which cached costs and planned depths hold: working them out costs more than that much drift
TIME_EVERY = 32  # steps of which one is timed where nobody shares out drafts: a device that is waited for loses a tenth
CONTEXT_STEP = 64  # tokens of context that share a cached cost

# --- trying again what did not pay ------------------------------------------------------------------------------------
TRY_EVERY, TRY_LONGEST = 24, 384  # rounds before a drafter with a model is tried again: a trial costs a few per cent
REACH = 1.5  # a new sequence tries it at once if so much more would make it the best; less for a costly trial
LOOKUP_FREE = 0.002  # of a plain step: a look-up that takes less is always asked, it cannot lose what a clock can show
LOOKUP_REST = 4  # rounds without a look-up that does not pay, at first
QUIET_TEXTS, QUIET_RESTS = 12, 8  # so many texts for whom nothing paid between so many rests need not be asked at all
QUIET_SECONDS, QUIET_LONGEST = 60, 1920  # for so long, at first and at most
LOOKUP_LONGEST = 32  # rounds without lookups where these do not pay: a lookup is cheap, so it is missed soon
PROBE_TRIAL, PROBE_SAMPLE, PROBE_REST = 16, 4, 32  # rounds of drafting, of plain decoding beside it, of rest, at first
PROBE_LONGEST = 256, 512  # of drafting and of rest: texts and machines change within minutes
PLANNER_RETRY = 64  # steps after which the planner tries a drafter that does not pay: it costs all requests a level
LENGTH_RETRY = 16  # rounds after which a length rule that drafts nothing tries one token

# --- batches ----------------------------------------------------------------------------------------------------------
SMALL_BATCH = 4  # sequences whose rows fit into the tiles that one takes anyway: beyond it drafts share a budget
HOST_SHARE = 0.1  # of a plain pass: where the host's own work exceeds it, the clock must say whether drafting pays
DEPTH_POINTS = 48  # numbers of levels tried for a batch, evenly spaced, so that the search stays cheap
EXTRA_LEVELS = 1  # drafted beyond the plan where the best can be selected afterwards
PLAN_CHANGE = 8  # a plan ends early when more than one request in so many comes or goes

# --- what `auto` builds -----------------------------------------------------------------------------------------------
SHORT_PROMPT = 128  # tokens that a head reads unweighed: weighing these took math from 0.97 to 0.94 of the best
HORIZON = 32  # rounds over which reading a longer prompt must pay: half of a usual answer
LEAST_PASS = 1e-3  # seconds; below it choosing takes longer than it saves (0.5 to 0.6 of plain speed at 0.45 ms, H200)
AUTO_LENGTH, AUTO_DEPTH = 16, 8  # most tokens ahead by lookup and by a tree; how many is decided every round
CLOCKED_LENGTH = 4  # of chains that are compared with plain decoding by the clock alone
CLOCKED_BLOCK = 7  # of those that a head drafts in one call: 1.23 of plain speed, 1.19 with 5, 1.11 with 3 (H200)
CLOCKED_REST = 8192  # rounds of plain decoding, some seconds, between two trials where drafts do not pay
AUTO_NODES, AUTO_WIDTH = 32, 4  # of that tree; on SmolLM2, reading 4 nodes a level instead of 8 loses 1% of its tokens
